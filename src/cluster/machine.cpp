// What hwloc and the kernel say of this machine and this process.
#include "trireme/base/error.hpp"
#include "trireme/cluster/cores.hpp"
#include "trireme/cluster/placement.hpp"

#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme::cluster {

namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

void require(int result, const char* call) {
  if (result != 0)
    throw Error(ErrorKind::kEnvironment, std::string(call) + " failed",
                "is /sys mounted? lstopo shows what hwloc sees");
}

Topology load(bool with_gpus) {
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw), "hwloc_topology_init");
  Topology topology(raw);
  // The mask of another rank may lie outside what this one may use.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (with_gpus) hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // Back ends that start a GPU's own library: seconds, and memory on every device.
  for (const char* component : {"opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  require(hwloc_topology_load(raw), "hwloc_topology_load");
  return topology;
}

int index_above(hwloc_topology_t topology, hwloc_obj_t object, hwloc_obj_type_t type) {
  const hwloc_obj_t found = hwloc_get_ancestor_obj_by_type(topology, type, object);
  return found != nullptr ? static_cast<int>(found->logical_index) : 0;
}

int first_numa(hwloc_obj_t object) {
  return object != nullptr && object->nodeset != nullptr ? hwloc_bitmap_first(object->nodeset) : -1;
}

std::string vendor_name(unsigned vendor) {
  switch (vendor) {
    case 0x10de:
      return "NVIDIA";
    case 0x1002:
      return "AMD";
    case 0x8086:
      return "Intel";
    default:
      return {};
  }
}

// A card that only drives a console is no GPU to compute with.
std::optional<Gpu> as_gpu(hwloc_topology_t topology, hwloc_obj_t device, int num_numa) {
  const auto& pci = device->attr->pcidev;
  const bool computes = pci.class_id == 0x0302 || pci.class_id == 0x0380 ||
                        pci.class_id == 0x1200 ||
                        (pci.class_id == 0x0300 && pci.vendor_id != 0x8086);
  Gpu gpu{.address = {}, .vendor = vendor_name(pci.vendor_id)};
  if (!computes || gpu.vendor.empty()) return std::nullopt;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", static_cast<unsigned>(pci.domain),
                static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev),
                static_cast<unsigned>(pci.func));
  gpu.address = text.data();
  const hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(topology, device);
  const bool near_one = parent != nullptr && parent->nodeset != nullptr &&
                        (num_numa == 1 || hwloc_bitmap_weight(parent->nodeset) < num_numa);
  if (near_one) gpu.numa = first_numa(parent);
  return gpu;
}

}  // namespace

bool has_gpu_driver() {
  std::error_code ignored;
  return std::ranges::any_of(
      std::array{"/dev/nvidiactl", "/dev/kfd", "/dev/dri"},
      [&](const char* path) { return std::filesystem::exists(path, ignored); });
}

Machine read_machine(bool with_gpus) {
  const Topology topology = load(with_gpus);
  Machine machine;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_PU, object)) != nullptr) {
    machine.processors.push_back(
        {static_cast<int>(object->os_index), index_above(topology.get(), object, HWLOC_OBJ_CORE),
         std::max(0, first_numa(object)), index_above(topology.get(), object, HWLOC_OBJ_PACKAGE)});
  }
  const int num_numa = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  while ((object = hwloc_get_next_pcidev(topology.get(), object)) != nullptr) {
    if (const auto gpu = as_gpu(topology.get(), object, num_numa)) machine.gpus.push_back(*gpu);
  }
  std::ranges::sort(machine.processors, {}, &Processor::id);
  std::ranges::sort(machine.gpus, {}, &Gpu::address);
  return machine;
}

Seat read_seat(const Environment& environment, int rank, int local_rank, int threads) {
  Seat seat;
  seat.rank = rank;
  seat.local_rank = local_rank;
  seat.threads = threads;
  seat.host = host_name();
  seat.processors = affinity_mask();
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                           "ZE_AFFINITY_MASK"}) {
    seat.devices = lookup(environment, name).value_or("");
    if (!seat.devices.empty()) break;
  }
  return seat;
}

}  // namespace trireme::cluster
