#include "ckpt/mpiio_writer.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/hdf5.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>

namespace trireme::ckpt {

namespace {

// What one H5Dwrite takes: bytes that follow each other in a tensor, as a box of its dataset.
struct Call {
  std::size_t tensor = 0;
  std::uint64_t bytes = 0;
  std::vector<hsize_t> start;
  std::vector<hsize_t> count;
};

std::vector<hsize_t> dims_of(const TensorSpec& spec) {
  return {spec.shape.begin(), spec.shape.end()};
}

// Cuts elements [begin, end) of an array into boxes, in order: no more than two a dimension.
void add_boxes(std::size_t tensor, const TensorSpec& spec, std::uint64_t begin, std::uint64_t end,
               std::vector<Call>& calls) {
  const std::uint64_t size = element_bytes(spec.dtype);
  const std::vector<hsize_t> dims = dims_of(spec);
  if (dims.empty()) {
    calls.push_back({tensor, size, {}, {}});
    return;
  }
  std::vector<std::uint64_t> stride(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i > 0; --i) stride[i - 1] = stride[i] * dims[i];
  while (begin < end) {
    std::size_t along = 0;
    while (begin % stride[along] != 0 || end - begin < stride[along]) ++along;
    Call call{tensor, 0, std::vector<hsize_t>(dims.size(), 0), dims};
    for (std::size_t i = 0; i <= along; ++i) {
      call.start[i] = begin / stride[i] % dims[i];
      call.count[i] = 1;
    }
    call.count[along] =
        std::min<hsize_t>((end - begin) / stride[along], dims[along] - call.start[along]);
    const std::uint64_t elements = call.count[along] * stride[along];
    call.bytes = elements * size;
    begin += elements;
    calls.push_back(std::move(call));
  }
}

// Neighbouring segments of a tensor leave together, as far as one call may go.
std::vector<Call> calls_for(const FileMap& map, std::span<const Segment> segments,
                            std::uint64_t most) {
  std::vector<Call> calls;
  for (std::size_t first = 0; first < segments.size();) {
    const std::size_t tensor = segments[first].tensor;
    const std::uint64_t begin = segments[first].offset;
    std::uint64_t end = begin;
    std::size_t next = first;
    for (;
         next < segments.size() && segments[next].tensor == tensor && segments[next].offset == end;
         ++next) {
      end = segments[next].end();
    }
    const TensorSpec& spec = map.spec(tensor);
    const std::uint64_t size = element_bytes(spec.dtype);
    const std::uint64_t origin = map.begin(tensor);
    for (std::uint64_t at = begin; at < end; at += most) {
      const std::uint64_t stop = std::min(end, at + most);
      add_boxes(tensor, spec, (at - origin) / size, (stop - origin) / size, calls);
    }
    first = next;
  }
  return calls;
}

// Hands out the bytes of segments in their order, through the staging memory.
class Stager {
 public:
  Stager(const FileMap& map, std::span<const Segment> segments, std::vector<CrcPiece>& pieces)
      : map_(map), segments_(segments), pieces_(pieces) {}

  void next(std::span<std::byte> into) {
    while (!into.empty()) {
      const Segment& segment = segments_.front();
      const std::size_t count = std::min<std::uint64_t>(segment.bytes - done_, into.size());
      done_ += stage(map_, segment, done_, into.first(count), pieces_);
      into = into.subspan(count);
      if (done_ < segment.bytes) continue;
      segments_ = segments_.subspan(1);
      done_ = 0;
    }
  }

 private:
  const FileMap& map_;
  std::span<const Segment> segments_;
  std::vector<CrcPiece>& pieces_;
  std::uint64_t done_ = 0;
};

h5::Properties property_list(hid_t of_class) {
  return h5::Properties(h5::check_id(H5Pcreate(of_class), "H5Pcreate", "a property list"));
}

h5::File open_together(comm::Communicator& comm, const std::filesystem::path& path) {
  const h5::Properties access = property_list(H5P_FILE_ACCESS);
  h5::check(
      H5Pset_fapl_mpio(access.get(), *static_cast<const MPI_Comm*>(comm.native()), MPI_INFO_NULL),
      "H5Pset_fapl_mpio", path.string());
  return h5::File(
      h5::check_id(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), "H5Fopen", path.string()));
}

class MpiioWriter {
 public:
  MpiioWriter(const Io& io, const h5::File& file, const std::filesystem::path& path,
              const FileMap& map, Transfer transfer)
      : io_(io), file_(file), path_(path), map_(map), transfer_(property_list(H5P_DATASET_XFER)) {
    h5::check(H5Pset_dxpl_mpio(transfer_.get(), transfer == Transfer::kCollective
                                                    ? H5FD_MPIO_COLLECTIVE
                                                    : H5FD_MPIO_INDEPENDENT),
              "H5Pset_dxpl_mpio", path.string());
  }

  void write(const Call& call, std::span<const std::byte> bytes) {
    open(call.tensor);
    const std::string& name = map_.spec(call.tensor).path;
    const hsize_t elements = call.bytes / element_bytes(map_.spec(call.tensor).dtype);
    const h5::Space memory(
        h5::check_id(H5Screate_simple(1, &elements, nullptr), "H5Screate_simple", name));
    if (!call.start.empty()) {
      h5::check(H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, call.start.data(), nullptr,
                                    call.count.data(), nullptr),
                "H5Sselect_hyperslab", name);
    }
    io_.around("write", path_, [&] { transfer(memory, bytes.data()); });
  }

  // Takes part in a call of other ranks without giving anything.
  void join(std::size_t tensor) {
    open(tensor);
    const hsize_t one = 1;
    const h5::Space memory(
        h5::check_id(H5Screate_simple(1, &one, nullptr), "H5Screate_simple", ""));
    h5::check(H5Sselect_none(memory.get()), "H5Sselect_none", "");
    h5::check(H5Sselect_none(space_.get()), "H5Sselect_none", "");
    const std::uint64_t nothing = 0;
    transfer(memory, &nothing);
  }

  // Returns how many calls HDF5 was given, failed ones included.
  std::size_t num_calls() const { return num_calls_; }

 private:
  void open(std::size_t tensor) {
    if (dataset_ && tensor == tensor_) return;
    const std::string& name = map_.spec(tensor).path;
    dataset_ = h5::Dataset(
        h5::check_id(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), "H5Dopen2", name));
    space_ = h5::Space(h5::check_id(H5Dget_space(dataset_.get()), "H5Dget_space", name));
    type_ = h5::DataType(h5::check_id(H5Dget_type(dataset_.get()), "H5Dget_type", name));
    tensor_ = tensor;
  }

  // Memory has the type of the file: nothing is converted on the way.
  void transfer(const h5::Space& memory, const void* bytes) {
    ++num_calls_;
    h5::check(
        H5Dwrite(dataset_.get(), type_.get(), memory.get(), space_.get(), transfer_.get(), bytes),
        "H5Dwrite", map_.spec(tensor_).path);
  }

  const Io& io_;
  const h5::File& file_;
  const std::filesystem::path& path_;
  const FileMap& map_;
  h5::Properties transfer_;
  h5::Dataset dataset_;
  h5::Space space_;
  h5::DataType type_;
  std::size_t tensor_ = 0;
  std::size_t num_calls_ = 0;
};

// The first failure of a rank, which then goes on taking part in what the others wait for.
class Failure {
 public:
  template <class Action>
  void catch_in(Action action) {
    try {
      action();
    } catch (...) {
      if (!first_) first_ = std::current_exception();
    }
  }
  bool happened() const { return first_ != nullptr; }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

// How many calls each tensor takes on the rank that needs most for it.
std::vector<std::uint32_t> rounds_of(comm::Communicator& comm, std::span<const Call> calls,
                                     std::size_t num_tensors) {
  std::vector<std::uint32_t> mine(num_tensors, 0);
  for (const Call& call : calls) ++mine[call.tensor];
  std::vector<std::uint32_t> most(num_tensors, 0);
  for (const comm::ByteVector& bytes :
       comm.all_gather(std::as_bytes(std::span(mine)), "checkpoint calls")) {
    std::vector<std::uint32_t> theirs(num_tensors);
    ensure(bytes.size() == num_tensors * sizeof(std::uint32_t), "every rank counts every tensor");
    if (!bytes.empty()) std::memcpy(theirs.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < num_tensors; ++i) most[i] = std::max(most[i], theirs[i]);
  }
  return most;
}

void write_together(MpiioWriter& writer, std::span<const Call> calls,
                    std::span<const std::uint32_t> rounds, Stager& stager,
                    std::span<std::byte> memory, Failure& failure) {
  for (std::size_t tensor = 0; tensor < rounds.size(); ++tensor) {
    for (std::uint32_t round = 0; round < rounds[tensor]; ++round) {
      const bool has_call = !calls.empty() && calls.front().tensor == tensor;
      const std::size_t before = writer.num_calls();
      failure.catch_in([&] {
        if (!has_call || failure.happened()) return;
        const auto bytes = memory.first(calls.front().bytes);
        stager.next(bytes);
        writer.write(calls.front(), bytes);
      });
      if (has_call) calls = calls.subspan(1);
      // A rank that fails on its way to a call would leave the others in theirs.
      if (writer.num_calls() == before) failure.catch_in([&] { writer.join(tensor); });
    }
  }
}

void write_alone(MpiioWriter& writer, std::span<const Call> calls, Stager& stager,
                 std::span<std::byte> memory) {
  for (const Call& call : calls) {
    const auto bytes = memory.first(call.bytes);
    stager.next(bytes);
    writer.write(call, bytes);
  }
}

}  // namespace

Written write_with_mpiio(const Io& io, StagingRing& ring, comm::Communicator& comm,
                         const std::filesystem::path& path, const FileMap& map,
                         std::span<const Segment> segments, const MpiioOptions& options) {
  const h5::Quiet quiet;
  Written written;
  std::vector<Call> calls;
  // Without a topology, which has misplaced data, and without messages of ours in between.
  comm::Communicator plain =
      comm.split(0, static_cast<int>(comm.rank().value), "checkpoint MPI-IO");
  FileDescriptor own;
  // What keeps a rank from opening the file shows here, before others wait for it in MPI's open.
  plain.agree("checkpoint open", [&] {
    own = io.open("open", path, O_WRONLY);
    const std::uint64_t most = std::min<std::uint64_t>(
        static_cast<std::uint64_t>(options.most_per_call.value), ring.memory().size());
    ensure(most >= kFileBlock, "a call takes a block or more");
    calls = calls_for(map, segments, align_down(most));
  });
  h5::File file;
  plain.agree("checkpoint open", [&] { file = open_together(plain, path); });
  const bool together = options.transfer == Transfer::kCollective;
  const std::vector<std::uint32_t> rounds =
      together ? rounds_of(plain, calls, map.size()) : std::vector<std::uint32_t>();
  Failure failure;
  {
    MpiioWriter writer(io, file, path, map, options.transfer);
    Stager stager(map, segments, written.pieces);
    if (together) {
      write_together(writer, calls, rounds, stager, ring.memory(), failure);
    } else {
      failure.catch_in([&] { write_alone(writer, calls, stager, ring.memory()); });
    }
  }
  // Closing is collective: those that failed take part as well.
  failure.catch_in([&] { h5::close(std::move(file), path.string()); });
  plain.agree("checkpoint MPI-IO", [&] {
    failure.rethrow();
    written.synced = io.sync("fsync", own.get(), path);
  });
  return written;
}

std::optional<std::string> avoid_vulcan() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> library{};
  int length = 0;
  MPI_Get_library_version(library.data(), &length);
  if (std::string_view(library.data()).find("Open MPI") == std::string_view::npos) return {};
  constexpr const char* kChoice = "OMPI_MCA_fcoll";
  const char* set = std::getenv(kChoice);
  if (set == nullptr) {
    ::setenv(kChoice, "dynamic_gen2", 0);
    return "collective MPI-IO uses Open MPI's dynamic_gen2 rather than its default vulcan, which "
           "has "
           "hung; OMPI_MCA_fcoll overrides this";
  }
  const std::string_view chosen(set);
  const bool excluded = chosen.starts_with("^");
  const bool named = chosen.find("vulcan") != chosen.npos;
  if (named == excluded) return {};
  return fmt::format(
      "collective MPI-IO may use Open MPI's vulcan (OMPI_MCA_fcoll={}), which has hung on odd "
      "numbers "
      "of ranks; dynamic_gen2 and individual have not",
      chosen);
}

}  // namespace trireme::ckpt
