// Weights of transformers' own models through a checkpoint and back: equal to the bit. What
// transformers computes from them is in tests/model/data, and with TRIREME_PEERS_PYTHON it says so
// itself.
#include "trireme/ckpt/hugging_face.hpp"

#include "support/golden.hpp"
#include "trireme/config/load.hpp"

#include "lone_writer.hpp"
#include "runtime.hpp"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <numeric>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
namespace st = ckpt::safetensors;
using nlohmann::json;

fs::path source_of(const std::string& name) { return test_data() / "model" / "data" / name; }

fs::path import_model(const fs::path& from, const fs::path& to) {
  comm::Communicator comm = lone_communicator();
  return ckpt::import_hugging_face(comm, from, to);
}

std::string bytes_of_tensor(const st::Reader& reader, const std::string& name) {
  const auto found = reader.find(name);
  if (!found) return "absent";
  std::string bytes(reader.tensors()[*found].bytes, '\0');
  reader.read_bytes(*found, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Every tensor of `a` and of `b`, to the bit.
void expect_same_weights(const fs::path& a, const fs::path& b) {
  const st::Reader one(a);
  const st::Reader two(b);
  EXPECT_EQ(one.tensors().size(), two.tensors().size());
  for (const st::Tensor& tensor : one.tensors()) {
    EXPECT_TRUE(bytes_of_tensor(one, tensor.name) == bytes_of_tensor(two, tensor.name))
        << tensor.name;
  }
}

class HuggingFace : public ::testing::TestWithParam<const char*> {
 protected:
  TempDir folder_;
  fs::path checkpoint_ = import_model(source_of(GetParam()), folder_ / "step-00000007");
  fs::path out_ = folder_ / "out";
};

TEST_P(HuggingFace, weights_pass_through_a_checkpoint_unchanged) {
  EXPECT_EQ(checkpoint_.filename(), "step-00000007");
  ckpt::Reader(checkpoint_).verify();
  const auto exported = ckpt::export_hugging_face(checkpoint_, {.to = out_});
  EXPECT_EQ(exported.files.size(), 1U);
  expect_same_weights(source_of(GetParam()), out_);
  const json then = json::parse(bytes_of_file(source_of(GetParam()) / "config.json"));
  const json now = json::parse(bytes_of_file(out_ / "config.json"));
  for (const auto& [key, value] : now.items()) {
    // transformers 5 writes these two under other names, and null for what it derives.
    if (key == "torch_dtype" || key == "rope_theta" || key == "n_inner" || key == "use_cache")
      continue;
    EXPECT_EQ(then[key], value) << key;
  }
}

TEST_P(HuggingFace, shards_keep_to_their_size_and_read_as_one) {
  const Bytes most(60'000);
  const auto exported = ckpt::export_hugging_face(checkpoint_, {.to = out_, .shard_size = most});
  EXPECT_GT(exported.files.size(), 3U);
  for (const fs::path& file : exported.files) {
    const st::Reader shard(file);
    std::uint64_t bytes = 0;
    for (const st::Tensor& tensor : shard.tensors()) bytes += tensor.bytes;
    EXPECT_TRUE(bytes <= 60'000 || shard.tensors().size() == 1) << file;
  }
  expect_same_weights(source_of(GetParam()), out_);
  // And back again: the same weights from many files.
  const fs::path again = import_model(out_, folder_ / "again");
  EXPECT_EQ(again.filename(), "step-00000000");
  const ckpt::Reader a(checkpoint_);
  const ckpt::Reader b(again);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    std::vector<std::byte> one(static_cast<std::size_t>(elements_of(a.tensors()[i])) * 4);
    std::vector<std::byte> two = one;
    const ckpt::Extent of_a{i, 0, elements_of(a.tensors()[i]), one.data()};
    const ckpt::Extent of_b{i, 0, elements_of(a.tensors()[i]), two.data()};
    a.read({&of_a, 1});
    b.read({&of_b, 1});
    EXPECT_TRUE(one == two) << a.tensors()[i].path;
  }
}

TEST_P(HuggingFace, transformers_gives_the_same_logits) {
  const char* python = std::getenv("TRIREME_PEERS_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "TRIREME_PEERS_PYTHON names no Python with torch and transformers";
  ckpt::export_hugging_face(checkpoint_, {.to = out_, .shard_size = Bytes(100'000)});
  ckpt::export_hugging_face(checkpoint_, {.to = folder_ / "bf16", .type = st::Type::kBF16});
  EXPECT_EQ(std::system(fmt::format("{} {} {} {} {}", python,
                                    (test_data() / "ckpt" / "load_with_transformers.py").string(),
                                    source_of(GetParam()).string(), out_.string(),
                                    (folder_ / "bf16").string())
                            .c_str()),
            0);
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFace,
                         ::testing::Values("gpt2", "llama-tied", "llama-untied"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A folder whose parts the tests spoil.
class Spoiled : public ::testing::Test {
 protected:
  Spoiled() {
    fs::create_directory(from_);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(source_of("llama-tied") / name, from_ / name);
  }
  void expect_refused(ErrorKind kind, const std::string& what) {
    const Error error = error_of([&] { import_model(from_, folder_ / "to"); });
    EXPECT_EQ(error.kind, kind) << error.report();
    EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
    EXPECT_FALSE(fs::exists(folder_ / "to" / "step-00000000"));
  }
  void change_config(const std::string& from, const std::string& to) {
    std::string text = bytes_of_file(from_ / "config.json");
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    write_file(from_ / "config.json", text.replace(at, from.size(), to));
  }
  TempDir folder_;
  fs::path from_ = folder_ / "from";
};

TEST_F(Spoiled, another_models_weights_are_refused) {
  change_config("\"intermediate_size\": 64", "\"intermediate_size\": 32");
  expect_refused(ErrorKind::kCorrupt, "mlp.gate_proj.weight is [");
}

TEST_F(Spoiled, missing_and_surplus_weights_are_named) {
  change_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  expect_refused(ErrorKind::kCorrupt, "there is no model.layers.2.");
  change_config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1");
  expect_refused(ErrorKind::kCorrupt, "model.layers.1.");
}

TEST_F(Spoiled, a_model_of_another_kind_is_refused) {
  change_config("\"silu\"", "\"relu\"");
  expect_refused(ErrorKind::kConfig, "hidden_act");
  fs::remove(from_ / "config.json");
  expect_refused(ErrorKind::kConfig, "there is no");
}

TEST_F(Spoiled, a_damaged_file_is_refused) {
  fs::resize_file(from_ / "model.safetensors", 1000);
  expect_refused(ErrorKind::kCorrupt, "model.safetensors");
}

TEST_F(Spoiled, an_import_replaces_nothing) {
  import_model(from_, folder_ / "to" / "step-00000003");
  const Error error = error_of([&] { import_model(from_, folder_ / "to" / "step-00000003"); });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_NE(error.message.find("exists already"), std::string::npos) << error.message;
}

TEST_F(Spoiled, gpt2_files_of_old_and_their_masks_are_understood) {
  const fs::path old = folder_ / "old";
  fs::create_directory(old);
  fs::copy_file(source_of("gpt2") / "config.json", old / "config.json");
  const st::Reader source(source_of("gpt2"));
  std::vector<st::Entry> entries;
  for (const st::Tensor& tensor : source.tensors())
    entries.push_back(
        {tensor.name.substr(std::string("transformer.").size()), tensor.type, tensor.shape});
  entries.push_back({"h.0.attn.bias", st::Type::kBool, {1, 1, 4, 4}});
  st::Writer writer(old / "model.safetensors", entries, {});
  for (const st::Tensor& tensor : source.tensors())
    writer.write(std::as_bytes(std::span(
        std::as_const(static_cast<const std::string&>(bytes_of_tensor(source, tensor.name))))));
  writer.write(std::vector<std::byte>(16));
  writer.finish();
  const fs::path checkpoint = import_model(old, folder_ / "to");
  ckpt::export_hugging_face(checkpoint, {.to = folder_ / "out"});
  expect_same_weights(source_of("gpt2"), folder_ / "out");
}

TEST_F(Spoiled, the_tokenizer_that_came_is_the_one_that_goes) {
  write_file(from_ / "tokenizer.json", R"({"model": {"type": "BPE"}})");
  change_config("\"eos_token_id\": null", "\"eos_token_id\": 17");
  ckpt::export_hugging_face(import_model(from_, folder_ / "to"), {.to = folder_ / "out"});
  EXPECT_EQ(bytes_of_file(folder_ / "out" / "tokenizer.json"), R"({"model": {"type": "BPE"}})");
  EXPECT_EQ(json::parse(bytes_of_file(folder_ / "out" / "config.json"))["eos_token_id"], 17);
  EXPECT_EQ(json::parse(bytes_of_file(folder_ / "out" / "generation_config.json"))["eos_token_id"],
            17);
}

// A checkpoint of a tiny gpt2, with moments, as training writes it.
fs::path save_tiny(const fs::path& folder, float first) {
  config::Config config;
  config.model = {.type = "gpt2", .layers = 1, .hidden = 8, .heads = 2, .context = 4, .vocab = 256};
  config::Model sizes = config.model;
  sizes.intermediate = 32;
  ckpt::Snapshot snapshot;
  static std::vector<float> values(256 * 8);
  std::iota(values.begin(), values.end(), 0.5f);
  values[0] = first;
  for (const char* root : {"/model/", "/optimizer/exp_avg/"}) {
    for (const ckpt::Parameter& parameter : ckpt::parameters_of(sizes)) {
      const std::size_t index = snapshot.tensors.size();
      snapshot.tensors.push_back({root + parameter.name, DType::kFloat32, parameter.shape});
      snapshot.extents.push_back({index, 0, elements_of(snapshot.tensors[index]), values.data()});
    }
  }
  snapshot.extra = {{"config", config::to_yaml(config)}, {"training", "{}"}};
  comm::Communicator comm = lone_communicator();
  return ckpt::save(comm, snapshot, {folder, Step(1), 0});
}

TEST(Export, holds_weights_alone_and_leaves_nothing_when_it_fails) {
  const TempDir folder;
  const fs::path checkpoint = save_tiny(folder / "c", 0.0f);
  std::vector<std::string> calls;
  const auto exported = ckpt::export_hugging_face(
      checkpoint, {.to = folder / "out", .hook = [&](std::string_view call, bool done) {
                     if (!done) calls.push_back(std::string(call));
                     return 0;
                   }});
  EXPECT_EQ(exported.tensors, 16);
  EXPECT_EQ(st::Reader(folder / "out").tensors().size(), 16U);
  EXPECT_GT(calls.size(), 12U);
  EXPECT_EQ(error_of([&] { ckpt::export_hugging_face(checkpoint, {.to = folder / "out"}); }).kind,
            ErrorKind::kConfig);
  for (std::size_t fail = 0; fail < calls.size(); ++fail) {
    if (calls[fail] == "fsync-parent") continue;  // from the rename on, the folder is there
    std::size_t count = 0;
    const Error error = error_of([&] {
      ckpt::export_hugging_face(checkpoint,
                                {.to = folder / "other", .hook = [&](std::string_view, bool done) {
                                   return !done && count++ == fail ? EIO : 0;
                                 }});
    });
    EXPECT_EQ(error.kind, ErrorKind::kIo) << calls[fail];
    EXPECT_FALSE(fs::exists(folder / "other"));
  }
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++entries;
  EXPECT_EQ(entries, 2U) << "no remains of what failed";
}

TEST(Export, refuses_what_fp16_cannot_hold_and_keeps_infinities) {
  const TempDir folder;
  const fs::path large = save_tiny(folder / "large", 1e6f);
  const Error error = error_of(
      [&] { ckpt::export_hugging_face(large, {.to = folder / "out", .type = st::Type::kF16}); });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_NE(error.message.find("transformer.wte.weight"), std::string::npos) << error.message;
  EXPECT_FALSE(fs::exists(folder / "out"));
  ckpt::export_hugging_face(large, {.to = folder / "out", .type = st::Type::kBF16});
  const fs::path infinite = save_tiny(folder / "infinite", INFINITY);
  ckpt::export_hugging_face(infinite, {.to = folder / "half", .type = st::Type::kF16});
  const st::Reader half(folder / "half");
  std::vector<float> two(2);
  half.read(*half.find("transformer.wte.weight"), 0, two);
  EXPECT_EQ(two[0], INFINITY);
  EXPECT_EQ(two[1], 1.5f);
}

TEST(Export, of_a_damaged_checkpoint_names_the_dataset) {
  const TempDir folder;
  const fs::path checkpoint = save_tiny(folder / "c", 0.0f);
  flip(checkpoint / "state.h5", fs::file_size(checkpoint / "state.h5") / 3);
  const Error error =
      error_of([&] { ckpt::export_hugging_face(checkpoint, {.to = folder / "out"}); });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Export, of_what_transformers_does_not_know_is_refused) {
  const TempDir folder;
  const fs::path checkpoint = save_lone(folder.path(), 1, 1).path;
  const Error error =
      error_of([&] { ckpt::export_hugging_face(checkpoint, {.to = folder / "out"}); });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_NE(error.message.find("transformer.wte.weight"), std::string::npos) << error.message;
}

}  // namespace
}  // namespace trireme::testing
