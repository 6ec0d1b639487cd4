#include "ckpt/hdf5.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace trireme::ckpt::h5 {

namespace {

extern "C" herr_t append_entry(unsigned, const H5E_error2_t* entry, void* text) {
  auto& out = *static_cast<std::string*>(text);
  if (!out.empty()) out += "; ";
  out += fmt::format("{}: {}", entry->func_name == nullptr ? "?" : entry->func_name,
                     entry->desc == nullptr ? "" : entry->desc);
  return 0;
}

std::string take_error_stack() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, append_entry, &text);
  H5Eclear2(H5E_DEFAULT);
  return text;
}

[[noreturn]] void fail(std::string_view call, std::string_view object, std::source_location where) {
  Error error(ErrorKind::kIo, fmt::format("{} failed for {}", call, object), {}, where);
  error.cause = take_error_stack();
  throw error;
}

}  // namespace

Quiet::Quiet() {
  H5Eget_auto2(H5E_DEFAULT, &handler_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Quiet::~Quiet() { H5Eset_auto2(H5E_DEFAULT, handler_, data_); }

hid_t check_id(hid_t id, std::string_view call, std::string_view object,
               std::source_location where) {
  if (id < 0) fail(call, object, where);
  return id;
}

void check(herr_t status, std::string_view call, std::string_view object,
           std::source_location where) {
  if (status < 0) fail(call, object, where);
}

void close(File file, std::string_view name) { check(H5Fclose(file.release()), "H5Fclose", name); }

}  // namespace trireme::ckpt::h5
