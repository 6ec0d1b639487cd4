// Owners for HDF5's identifiers, and its errors as ours. HDF5 has one thread: whoever uses this is
// that thread.
#pragma once

#include "trireme/base/handle.hpp"

#include <hdf5.h>

#include <source_location>
#include <string>
#include <string_view>

namespace trireme::ckpt::h5 {

template <herr_t (*Close)(hid_t)>
struct IdTraits {
  using Type = hid_t;
  static hid_t null() { return H5I_INVALID_HID; }
  static void close(hid_t id) noexcept { Close(id); }
};

using File = Handle<IdTraits<H5Fclose>>;
using Group = Handle<IdTraits<H5Gclose>>;
using Dataset = Handle<IdTraits<H5Dclose>>;
using Space = Handle<IdTraits<H5Sclose>>;
using DataType = Handle<IdTraits<H5Tclose>>;
using Attribute = Handle<IdTraits<H5Aclose>>;
using Properties = Handle<IdTraits<H5Pclose>>;

// While it lives HDF5 prints nothing; the caller's handler is put back.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  H5E_auto2_t handler_ = nullptr;
  void* data_ = nullptr;
};

// Return what they are given, or throw Io with HDF5's error stack as the cause.
hid_t check_id(hid_t id, std::string_view call, std::string_view object,
               std::source_location where = std::source_location::current());
void check(herr_t status, std::string_view call, std::string_view object,
           std::source_location where = std::source_location::current());

// Closes a file and reports failure, which a destructor could not: HDF5 writes what it still holds
// only now.
void close(File file, std::string_view name);

}  // namespace trireme::ckpt::h5
