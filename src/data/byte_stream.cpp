#include "data/byte_stream.hpp"

#include "trireme/base/error.hpp"
#include "trireme/data/documents.hpp"

#include "data/input_file.hpp"
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

namespace trireme::data::detail {

namespace {

class PlainStream final : public ByteStream {
 public:
  PlainStream(InputFile file, std::uint64_t begin) : file_(std::move(file)), at_(begin) {}

  std::size_t read(std::span<char> out) override {
    const std::uint64_t left = file_.size() > at_ ? file_.size() - at_ : 0;
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), left));
    file_.read(at_, std::as_writable_bytes(out.first(count)));
    at_ += count;
    return count;
  }

 private:
  InputFile file_;
  std::uint64_t at_;
};

// What gzip and zstd have in common: packed bytes come in, and the end must come where a frame ends.
class PackedStream : public ByteStream {
 public:
  explicit PackedStream(InputFile file)
      : file_(std::move(file)), packed_(std::size_t{1} << 17), path_(file_.path().string()) {}

 protected:
  // Refills when everything was used; returns what is there, empty at the file's end.
  std::span<std::byte> packed() {
    if (used_ < filled_) return std::span(packed_).subspan(used_, filled_ - used_);
    const std::uint64_t left = file_.size() - at_;
    filled_ = static_cast<std::size_t>(std::min<std::uint64_t>(packed_.size(), left));
    used_ = 0;
    file_.read(at_, std::span(packed_).first(filled_));
    at_ += filled_;
    return std::span(packed_).first(filled_);
  }
  void use(std::size_t count) { used_ += count; }

  [[noreturn]] void corrupt(std::string_view why) const {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}: {} near offset {}", path_, why, at_ - filled_ + used_),
                "unpack the file by hand to see what is left of it, or fetch it again");
  }
  [[noreturn]] void truncated(std::string_view what) const {
    corrupt(fmt::format("truncated: the file ends inside a {} frame", what));
  }

 private:
  InputFile file_;
  std::vector<std::byte> packed_;
  std::string path_;
  std::uint64_t at_ = 0;
  std::size_t used_ = 0;
  std::size_t filled_ = 0;
};

class GzipStream final : public PackedStream {
 public:
  explicit GzipStream(InputFile file) : PackedStream(std::move(file)) {
    ensure(::inflateInit2(&state_, 15 + 16) == Z_OK, "zlib starts");
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream() override { ::inflateEnd(&state_); }

  std::size_t read(std::span<char> out) override {
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    state_.avail_out = static_cast<uInt>(out.size());
    while (state_.avail_out == out.size()) {
      const std::span<std::byte> in = packed();
      if (in.empty() && between_members_) return 0;
      if (in.empty()) truncated("gzip");
      inflate_some(in);
    }
    return out.size() - state_.avail_out;
  }

 private:
  void inflate_some(std::span<std::byte> in) {
    state_.next_in = reinterpret_cast<Bytef*>(in.data());
    state_.avail_in = static_cast<uInt>(in.size());
    between_members_ = false;
    const int code = ::inflate(&state_, Z_NO_FLUSH);
    use(in.size() - state_.avail_in);
    if (code == Z_STREAM_END) {
      between_members_ = true;
      ::inflateReset(&state_);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      corrupt(fmt::format("not gzip data ({})", state_.msg != nullptr ? state_.msg : "damaged"));
    }
  }

  z_stream state_{};
  bool between_members_ = true;
};

class ZstdStream final : public PackedStream {
 public:
  explicit ZstdStream(InputFile file)
      : PackedStream(std::move(file)), state_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    ensure(state_ != nullptr, "zstd starts");
  }

  std::size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      const std::span<std::byte> in = packed();
      // The decoder may hold output back although all input is used.
      if (in.empty() && wants_ == 0) return 0;
      ZSTD_inBuffer from{in.data(), in.size(), 0};
      wants_ = ZSTD_decompressStream(state_.get(), &to, &from);
      if (ZSTD_isError(wants_) != 0) {
        corrupt(fmt::format("not zstd data ({})", ZSTD_getErrorName(wants_)));
      }
      use(from.pos);
      if (in.empty() && to.pos == 0) truncated("zstd");
    }
    return to.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> state_;
  std::size_t wants_ = 0;  // 0 between frames
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path, std::uint64_t begin) {
  InputFile file(path);
  if (path.extension() == ".gz") return std::make_unique<GzipStream>(std::move(file));
  if (path.extension() == ".zst") return std::make_unique<ZstdStream>(std::move(file));
  return std::make_unique<PlainStream>(std::move(file), begin);
}

}  // namespace trireme::data::detail
