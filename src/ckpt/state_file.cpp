// Metadata and data are kept apart by making the file in two passes. If space were allocated when a
// dataset is created, as a lone dataset would want it, HDF5's alignment would put every object
// header on a 4 KiB border too and mix headers among the data. So the first pass creates everything
// without alignment and without space for tensors, and the second gives each tensor its space by
// writing one element. All metadata then lies in one compact head, under one checksum.
#include "ckpt/state_file.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/hdf5.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace trireme::ckpt {

namespace {

// HDF5 has no bfloat16, but it knows floats by their fields: h5py reads this one as float32.
h5::DataType bfloat16() {
  h5::DataType type(h5::check_id(H5Tcopy(H5T_IEEE_F32LE), "H5Tcopy", "bfloat16"));
  h5::check(H5Tset_fields(type.get(), 15, 7, 8, 0, 7), "H5Tset_fields", "bfloat16");
  h5::check(H5Tset_size(type.get(), 2), "H5Tset_size", "bfloat16");
  h5::check(H5Tset_ebias(type.get(), 127), "H5Tset_ebias", "bfloat16");
  return type;
}

h5::DataType stored_type(DType dtype) {
  const auto copy = [](hid_t known) {
    return h5::DataType(h5::check_id(H5Tcopy(known), "H5Tcopy", "a stored type"));
  };
  switch (dtype) {
    case DType::kFloat32:
      return copy(H5T_IEEE_F32LE);
    case DType::kFloat64:
      return copy(H5T_IEEE_F64LE);
    case DType::kInt64:
      return copy(H5T_STD_I64LE);
    case DType::kUInt8:
      return copy(H5T_STD_U8LE);
    case DType::kBFloat16:
      return bfloat16();
  }
  return {};
}

h5::Properties properties(hid_t of_class) {
  return h5::Properties(h5::check_id(H5Pcreate(of_class), "H5Pcreate", "a property list"));
}

// Time stamps would make two saves of one state differ.
h5::Properties untimed(hid_t of_class) {
  h5::Properties list = properties(of_class);
  h5::check(H5Pset_obj_track_times(list.get(), false), "H5Pset_obj_track_times", "a property list");
  return list;
}

h5::Properties access(std::uint64_t alignment) {
  h5::Properties list = properties(H5P_FILE_ACCESS);
  // The format of HDF5 1.8: checksums on metadata, yet every reader in use knows it.
  h5::check(H5Pset_libver_bounds(list.get(), H5F_LIBVER_V18, H5F_LIBVER_V18),
            "H5Pset_libver_bounds", "");
  h5::check(H5Pset_alignment(list.get(), 1, alignment), "H5Pset_alignment", "");
  h5::check(H5Pset_meta_block_size(list.get(), 64 * 1024), "H5Pset_meta_block_size", "");
  // Small tensors would otherwise share a block.
  h5::check(H5Pset_small_data_block_size(list.get(), 0), "H5Pset_small_data_block_size", "");
  // The one element that gives a tensor its space would otherwise be written with 64 KiB around it,
  // into the page cache and from there to disk, where all of it is written again.
  h5::check(H5Pset_sieve_buf_size(list.get(), 1), "H5Pset_sieve_buf_size", "");
#if H5_VERSION_GE(1, 10, 7)
  // The folder has one writer; parallel file systems mounted without flock would refuse the open.
  h5::check(H5Pset_file_locking(list.get(), false, true), "H5Pset_file_locking", "");
#endif
  return list;
}

h5::Properties dataset_properties(H5D_alloc_time_t allocation) {
  h5::Properties list = untimed(H5P_DATASET_CREATE);
  h5::check(H5Pset_layout(list.get(), H5D_CONTIGUOUS), "H5Pset_layout", "");
  h5::check(H5Pset_alloc_time(list.get(), allocation), "H5Pset_alloc_time", "");
  h5::check(H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time", "");
  return list;
}

h5::Space space_of(const std::vector<std::int64_t>& shape, const std::string& name) {
  if (shape.empty()) return h5::Space(h5::check_id(H5Screate(H5S_SCALAR), "H5Screate", name));
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return h5::Space(
      h5::check_id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
                   "H5Screate_simple", name));
}

class Creator {
 public:
  explicit Creator(const std::filesystem::path& path) : name_(path.string()) {}

  void first_pass(const std::vector<TensorSpec>& tensors,
                  const std::map<std::string, std::string>& texts,
                  const std::vector<std::pair<const char*, std::int64_t>>& attributes) {
    const h5::Properties creation = untimed(H5P_FILE_CREATE);
    const h5::Properties access_list = access(1);
    file_ = h5::File(
        h5::check_id(H5Fcreate(name_.c_str(), H5F_ACC_EXCL, creation.get(), access_list.get()),
                     "H5Fcreate", name_));
    for (const auto& [name, value] : attributes) write_number(name, value);
    const h5::Properties late = dataset_properties(H5D_ALLOC_TIME_LATE);
    for (const TensorSpec& spec : tensors) {
      make_groups(spec.path);
      create_dataset(spec.path, stored_type(spec.dtype).get(), space_of(spec.shape, spec.path),
                     late);
    }
    for (const auto& [name, text] : texts) write_text(name, text);
    h5::close(std::move(file_), name_);
  }

  Layout second_pass(const std::vector<TensorSpec>& tensors) {
    const h5::Properties access_list = access(kFileBlock);
    file_ = h5::File(
        h5::check_id(H5Fopen(name_.c_str(), H5F_ACC_RDWR, access_list.get()), "H5Fopen", name_));
    for (const TensorSpec& spec : tensors) layout_.offsets.push_back(allocate(spec));
    hsize_t size = 0;
    h5::check(H5Fget_filesize(file_.get(), &size), "H5Fget_filesize", name_);
    layout_.file_bytes = align_up(size);
    h5::close(std::move(file_), name_);
    return layout_;
  }

 private:
  void write_number(const char* name, std::int64_t value) {
    const h5::Space space(h5::check_id(H5Screate(H5S_SCALAR), "H5Screate", name));
    const h5::Attribute attribute(h5::check_id(
        H5Acreate2(file_.get(), name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
        "H5Acreate2", name));
    h5::check(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), "H5Awrite", name);
  }

  // Not by H5Pset_create_intermediate_group, which would give the groups time stamps.
  void make_groups(const std::string& path) {
    for (std::size_t at = path.find('/', 1); at != path.npos; at = path.find('/', at + 1)) {
      std::string group = path.substr(0, at);
      if (groups_.contains(group)) continue;
      const h5::Group made(h5::check_id(
          H5Gcreate2(file_.get(), group.c_str(), link_.get(), group_.get(), H5P_DEFAULT),
          "H5Gcreate2", group));
      groups_.insert(std::move(group));
    }
  }

  h5::Dataset create_dataset(const std::string& path, hid_t type, const h5::Space& space,
                             const h5::Properties& how) {
    return h5::Dataset(h5::check_id(H5Dcreate2(file_.get(), path.c_str(), type, space.get(),
                                               link_.get(), how.get(), H5P_DEFAULT),
                                    "H5Dcreate2", path));
  }

  void write_text(const std::string& name, const std::string& text) {
    const std::string path = "/extra/" + name;
    make_groups(path);
    const h5::DataType type(h5::check_id(H5Tcopy(H5T_C_S1), "H5Tcopy", path));
    // HDF5 has no string type of no bytes: an empty text is one zero byte of padding.
    h5::check(H5Tset_size(type.get(), std::max<std::size_t>(text.size(), 1)), "H5Tset_size", path);
    h5::check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad", path);
    h5::check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset", path);
    const h5::Dataset dataset = create_dataset(path, type.get(), space_of({}, path),
                                               dataset_properties(H5D_ALLOC_TIME_EARLY));
    h5::check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()),
              "H5Dwrite", path);
    layout_.texts.push_back({name, H5Dget_offset(dataset.get()), text.size()});
  }

  std::uint64_t allocate(const TensorSpec& spec) {
    if (bytes_of(spec.dtype, spec.shape) == 0) return 0;
    const h5::Dataset dataset(
        h5::check_id(H5Dopen2(file_.get(), spec.path.c_str(), H5P_DEFAULT), "H5Dopen2", spec.path));
    const h5::Space one(h5::check_id(H5Screate(H5S_SCALAR), "H5Screate", spec.path));
    const h5::Space space = space_of(spec.shape, spec.path);
    if (!spec.shape.empty()) {
      const std::vector<hsize_t> start(spec.shape.size(), 0);
      const std::vector<hsize_t> count(spec.shape.size(), 1);
      h5::check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr,
                                    count.data(), nullptr),
                "H5Sselect_hyperslab", spec.path);
    }
    const std::array<std::uint64_t, 1> zero{};
    h5::check(H5Dwrite(dataset.get(), stored_type(spec.dtype).get(), one.get(), space.get(),
                       H5P_DEFAULT, zero.data()),
              "H5Dwrite", spec.path);
    const haddr_t offset = H5Dget_offset(dataset.get());
    ensure(offset != HADDR_UNDEF, fmt::format("{} has a place in {}", spec.path, name_));
    return offset;
  }

  // Names keep every character: the links say that they are UTF-8.
  static h5::Properties utf8_links() {
    h5::Properties list = properties(H5P_LINK_CREATE);
    h5::check(H5Pset_char_encoding(list.get(), H5T_CSET_UTF8), "H5Pset_char_encoding", "");
    return list;
  }

  std::string name_;
  h5::File file_;
  h5::Properties link_ = utf8_links();
  h5::Properties group_ = untimed(H5P_GROUP_CREATE);
  std::set<std::string> groups_;
  Layout layout_;
};

// Sets the head's length and makes sure of what every writer relies on: no two tensors in one
// block, nothing of HDF5's own behind the head.
void settle(Layout& layout, const std::vector<TensorSpec>& tensors) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = *bytes_of(tensors[i].dtype, tensors[i].shape);
    if (bytes > 0) ranges.emplace_back(layout.offsets[i], align_up(layout.offsets[i] + bytes));
  }
  std::sort(ranges.begin(), ranges.end());
  layout.head_bytes = ranges.empty() ? layout.file_bytes : ranges.front().first;
  std::uint64_t end = layout.head_bytes;
  for (const auto& [begin, finish] : ranges) {
    ensure(begin == end && begin % kFileBlock == 0,
           "HDF5 places tensors one behind the other on 4 KiB borders");
    end = finish;
  }
  ensure(end == layout.file_bytes, "HDF5 places nothing behind the tensors");
  for (const TextPlace& text : layout.texts) {
    ensure(text.offset + text.bytes <= layout.head_bytes, "HDF5 places texts in the head");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (bytes_of(tensors[i].dtype, tensors[i].shape) == 0) layout.offsets[i] = layout.head_bytes;
  }
}

}  // namespace

Layout create_state_file(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                         const std::map<std::string, std::string>& texts, Step step, int format) {
  const h5::Quiet quiet;
  Creator creator(path);
  creator.first_pass(tensors, texts, {{"trireme-format", format}, {"step", step.value}});
  Layout layout = creator.second_pass(tensors);
  settle(layout, tensors);
  return layout;
}

}  // namespace trireme::ckpt
