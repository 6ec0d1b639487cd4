#include "data/tokenizer/hugging_face.hpp"

#include "trireme/base/error.hpp"

#include "data/input_file.hpp"
#include "data/tokenizer/added_tokens.hpp"
#include "data/tokenizer/decoder.hpp"
#include "data/tokenizer/normalizer.hpp"
#include "data/tokenizer/pre_tokenizer.hpp"
#include "data/tokenizer/subword.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::uint32_t>;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 28;

// Special tokens around a text.
struct Template {
  Ids before;
  Ids after;
};

Ids ids_of_special(const Json& json, const std::string& name) {
  const Json& ids = json.at("special_tokens").at(name).at("ids");
  return ids.get<Ids>();
}

Template template_of(const Json& json);

Template sequence_of(const Json& json) {
  Template all;
  for (const Json& one : json.at("processors")) {
    const Template made = template_of(one);
    all.before.insert(all.before.begin(), made.before.begin(), made.before.end());
    all.after.insert(all.after.end(), made.after.begin(), made.after.end());
  }
  return all;
}

Template template_of(const Json& json) {
  if (json.is_null()) return {};
  const auto type = json.at("type").get<std::string>();
  if (type == "ByteLevel") return {};
  if (type == "Sequence") return sequence_of(json);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{json.at("cls").at(1).get<std::uint32_t>()},
            {json.at("sep").at(1).get<std::uint32_t>()}};
  if (type != "TemplateProcessing") {
    throw_unknown("post_processor", type,
                  "BertProcessing, ByteLevel, RobertaProcessing, Sequence and TemplateProcessing");
  }
  Template made;
  bool behind = false;
  for (const Json& item : json.at("single")) {
    if (!item.contains("SpecialToken")) {
      behind = true;
      continue;
    }
    const Ids ids = ids_of_special(json, item.at("SpecialToken").at("id").get<std::string>());
    Ids& side = behind ? made.after : made.before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  return made;
}

class HuggingFace final : public Tokenizer {
 public:
  HuggingFace(const Json& json, std::uint64_t fingerprint)
      : normalizer_(make_normalizer(json.value("normalizer", Json()))),
        added_(json.value("added_tokens", Json()), normalizer_),
        pre_tokenizer_(make_pre_tokenizer(json.value("pre_tokenizer", Json()))),
        model_(make_subword(json.at("model"), is_byte_level(json.value("pre_tokenizer", Json())))),
        template_(template_of(json.value("post_processor", Json()))),
        decoder_(make_decoder(json.value("decoder", Json()))),
        fingerprint_(fingerprint) {
    end_ = model_->vocabulary().end();
    for (const AddedToken& token : added_.all()) end_ = std::max(end_, token.id + 1);
    for (const Ids& side : {template_.before, template_.after}) {
      for (const std::uint32_t id : side) {
        if (id >= end_)
          throw Error(ErrorKind::kCorrupt, fmt::format("its template has {}, which is no id", id));
      }
    }
  }

  std::int64_t vocabulary_size() const override { return end_; }
  std::uint64_t fingerprint() const override { return fingerprint_; }

  void encode(std::string_view text, bool special, Ids& ids) const override {
    std::string repaired;
    if (!is_utf8(text)) text = repaired = to_utf8(text);
    if (special) ids.insert(ids.end(), template_.before.begin(), template_.before.end());
    for (const Stretch& stretch : added_.split(text, false)) {
      if (stretch.token) {
        ids.push_back(*stretch.token);
      } else {
        encode_plain(stretch.text, stretch.text.data() == text.data(), ids);
      }
    }
    if (special) ids.insert(ids.end(), template_.after.begin(), template_.after.end());
  }

  std::string decode(std::span<const std::uint32_t> ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    for (const std::uint32_t id : ids) {
      const AddedToken* added = added_.with_id(id);
      if (added && added->special && skip_special) continue;
      const std::string* token = added ? &added->content : model_->vocabulary().token(id);
      if (token) tokens.push_back(*token);
    }
    std::string text;
    if (decoder_) {
      for (const std::string& part : decoder_(std::move(tokens))) text += part;
    } else {
      text = fmt::format("{}", fmt::join(tokens, " "));
    }
    return text;
  }

  std::optional<std::uint32_t> id_of(std::string_view token) const override {
    for (const AddedToken& added : added_.all()) {
      if (added.content == token) return added.id;
    }
    return model_->vocabulary().find(token);
  }

 private:
  // A stretch without added tokens that are looked for as they stand.
  void encode_plain(std::string_view text, bool first, Ids& ids) const {
    std::string changed;
    if (normalizer_) text = changed = normalizer_(text);
    for (const Stretch& stretch : added_.split(text, true)) {
      if (stretch.token) {
        ids.push_back(*stretch.token);
      } else {
        encode_pieces({stretch.text, first && stretch.text.data() == text.data()}, ids);
      }
    }
  }

  void encode_pieces(Piece piece, Ids& ids) const {
    if (!pre_tokenizer_) return model_->encode(piece.text, ids);
    Pieces pieces;
    pre_tokenizer_->split(piece, pieces);
    for (const Piece& one : pieces.all) model_->encode(one.text, ids);
  }

  Normalizer normalizer_;
  AddedTokens added_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const Subword> model_;
  Template template_;
  Decoder decoder_;
  std::uint64_t fingerprint_;
  std::uint32_t end_ = 0;
};

[[noreturn]] void rethrow_with_name(const std::string& name, const Error& error) {
  throw Error(error.kind, fmt::format("{}: {}", name, error.message), error.hint);
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_hugging_face(std::string_view text,
                                                    const std::string& name) {
  try {
    const Json json = Json::parse(text);
    if (!json.is_object() || !json.contains("model"))
      throw Error(ErrorKind::kCorrupt, "not a tokenizer: it has no 'model'");
    return std::make_shared<const HuggingFace>(json, XXH3_64bits(text.data(), text.size()));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", name, error.what()));
  } catch (const Error& error) {
    rethrow_with_name(name, error);
  }
}

std::shared_ptr<const Tokenizer> load_hugging_face(const std::filesystem::path& file) {
  const InputFile in(file);
  if (in.size() > kMostBytes) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}: {} bytes are too many for a tokenizer", file.string(), in.size()));
  }
  std::string text(in.size(), '\0');
  in.read(0, std::as_writable_bytes(std::span(text)));
  return parse_hugging_face(text, file.string());
}

}  // namespace trireme::data::detail
