#include "adafactor.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/norm.hpp"

#include "number_type.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

namespace trireme::optim {

namespace {

// Runs of elements that are treated at once; sums of squares are added by block of the engine's
// order, so that they do not depend on shards.
constexpr std::int64_t kBlock = parallel::kBlock;

enum class Kind : std::int64_t { kRows, kColumns, kWeights, kUpdate };

// Calls use(block number, begin, size) for the parts of a piece that lie in one block each.
template <class Use>
void for_blocks(std::uint64_t first_element, std::size_t size, const Use& use) {
  for (std::size_t begin = 0; begin < size;) {
    const std::uint64_t element = first_element + begin;
    const std::size_t within = element % kBlock;
    const std::size_t part = std::min(size - begin, static_cast<std::size_t>(kBlock) - within);
    use(static_cast<std::int64_t>(element / kBlock), begin, part);
    begin += part;
  }
}

double square_sum(std::span<const float> values) {
  double sum = 0;
  kernels::block_square_sums(values, std::span(&sum, 1));
  return sum;
}

}  // namespace

// A run of values of one parameter, on its way to the owner or back.
struct Adafactor::Record {
  struct Head {
    std::int64_t parameter;
    Kind kind;
    std::int64_t begin;
    std::int64_t count;
  };

  std::size_t parameter = 0;
  Kind kind = Kind::kRows;
  std::int64_t begin = 0;
  std::vector<double> values;

  template <class T>
  static Record of(std::size_t parameter, Kind kind, const std::vector<T>& all,
                   parallel::Range part) {
    return {parameter, kind, part.begin,
            std::vector<double>(all.begin() + part.begin, all.begin() + part.end)};
  }

  void append_to(comm::ByteVector& bytes) const {
    const Head head{static_cast<std::int64_t>(parameter), kind, begin, std::ssize(values)};
    const auto put = [&](std::span<const std::byte> part) {
      bytes.insert(bytes.end(), part.begin(), part.end());
    };
    put(std::as_bytes(std::span(&head, 1)));
    put(std::as_bytes(std::span(values)));
  }

  static void read_all(std::span<const std::byte> bytes, std::vector<Record>& into) {
    while (!bytes.empty()) {
      Head head{};
      std::memcpy(&head, bytes.data(), sizeof head);
      Record& record = into.emplace_back();
      record.parameter = static_cast<std::size_t>(head.parameter);
      record.kind = head.kind;
      record.begin = head.begin;
      record.values.resize(static_cast<std::size_t>(head.count));
      const std::size_t size = record.values.size() * sizeof(double);
      std::memcpy(record.values.data(), bytes.data() + sizeof head, size);
      bytes = bytes.subspan(sizeof head + size);
    }
  }
};

namespace {

template <class T>
void store(const std::vector<double>& values, std::int64_t begin, std::vector<T>& into) {
  std::transform(values.begin(), values.end(), into.begin() + begin,
                 [](double value) { return static_cast<T>(value); });
}

template <class T>
void combine(const std::vector<double>& values, std::int64_t begin, std::vector<T>& into,
             bool maximum) {
  auto at = into.begin() + begin;
  for (const double value : values) {
    *at = maximum ? std::max(*at, static_cast<T>(value)) : *at + static_cast<T>(value);
    ++at;
  }
}

}  // namespace

Adafactor::Tensor Adafactor::describe(const parallel::Slot& slot) {
  Tensor tensor;
  tensor.slot = &slot;
  tensor.factored = slot.shape.size() >= 2;
  if (tensor.factored) {
    tensor.cols = slot.shape.back();
    tensor.rows = slot.shape[slot.shape.size() - 2];
    for (std::size_t d = 0; d + 2 < slot.shape.size(); ++d) tensor.matrices *= slot.shape[d];
    tensor.row.resize(static_cast<std::size_t>(tensor.matrices * tensor.rows));
    tensor.row_factors.resize(tensor.row.size());
  } else {
    tensor.cols = slot.size;
  }
  tensor.col.resize(static_cast<std::size_t>(tensor.matrices * tensor.cols));
  tensor.col_factors.resize(tensor.col.size());
  return tensor;
}

Adafactor::Adafactor(const AdafactorOptions& options, double beta1, parallel::Engine& engine,
                     comm::Communicator& world)
    : options_(options), beta1_(beta1), world_(world) {
  for (const parallel::Slot* slot : engine.parameters()) tensors_.push_back(describe(*slot));
  for (const parallel::StatePiece& piece : engine.state(/*owned=*/true)) {
    Tensor& tensor = tensors_[piece.parameter];
    if (piece.count == 0 || !tensor.slot->trains) continue;
    tensor.owned.push_back({piece.begin, piece.begin + piece.count});
  }
  for (Tensor& tensor : tensors_) {
    if (tensor.owned.empty()) continue;
    std::int64_t begin = tensor.owned[0].begin;
    std::int64_t end = tensor.owned[0].end;
    for (const parallel::Range& range : tensor.owned) {
      begin = std::min(begin, range.begin);
      end = std::max(end, range.end);
    }
    tensor.owned_rows = {begin / tensor.cols, (end - 1) / tensor.cols + 1};
    tensor.owned_cols = {tensor.owned_rows.begin / tensor.rows * tensor.cols,
                         ((tensor.owned_rows.end - 1) / tensor.rows + 1) * tensor.cols};
  }
}

template <class Use>
void Adafactor::for_owned(parallel::Engine& engine, const Use& use) {
  engine.for_each_update(
      [&](const parallel::UpdatePiece& piece) {
        Tensor& tensor = tensors_[piece.parameter];
        const std::int64_t end = piece.begin + std::ssize(piece.grad);
        const bool owned = std::ranges::any_of(tensor.owned, [&](const parallel::Range& range) {
          return range.begin <= piece.begin && end <= range.end;
        });
        if (owned) use(tensor, piece);
      },
      parallel::Access::kRead);
}

std::vector<Adafactor::Record> Adafactor::to_owners(std::vector<Record> records) {
  std::vector<Record> here;
  std::map<int, comm::ByteVector> out;
  for (Record& record : records) {
    if (mine(record.parameter)) {
      here.push_back(std::move(record));
    } else {
      record.append_to(out[owner(record.parameter)]);
    }
  }
  std::vector<comm::Message> messages;
  for (auto& [peer, bytes] : out) messages.push_back({Rank(peer), std::move(bytes)});
  for (const comm::Message& message :
       world_.exchange(std::move(messages), "Adafactor's statistics to their owners")) {
    Record::read_all(message.bytes, here);
  }
  return here;
}

std::vector<Adafactor::Record> Adafactor::to_all(const std::vector<Record>& records) {
  comm::ByteVector bytes;
  for (const Record& record : records) record.append_to(bytes);
  std::vector<Record> all;
  for (const comm::ByteVector& theirs : world_.all_gather(bytes, "Adafactor's statistics")) {
    Record::read_all(theirs, all);
  }
  return all;
}

// Whole rows and columns need the largest entry before anything is added; the norm of the weights
// goes along.
void Adafactor::agree_on_largest(parallel::Engine& engine) {
  std::vector<Record> out;
  for (Tensor& tensor : tensors_) {
    tensor.row_largest.assign(tensor.row.size(), 0.0F);
    tensor.col_largest.assign(tensor.col.size(), 0.0F);
  }
  for_owned(engine, [&](Tensor& tensor, const parallel::UpdatePiece& piece) {
    const kernels::MatrixPart part = tensor.part(piece.grad, piece.begin);
    if (tensor.factored) kernels::row_maxima(part, tensor.row_largest);
    kernels::column_maxima(part, tensor.col_largest);
    if (!options_.scale_parameter) return;
    for_blocks(piece.element, piece.master.size(),
               [&](std::int64_t block, std::size_t begin, std::size_t size) {
                 out.push_back({piece.parameter,
                                Kind::kWeights,
                                block,
                                {square_sum(piece.master.subspan(begin, size))}});
               });
  });
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    Tensor& tensor = tensors_[p];
    if (tensor.owned.empty()) continue;
    if (tensor.factored) {
      out.push_back(Record::of(p, Kind::kRows, tensor.row_largest, tensor.owned_rows));
    }
    out.push_back(Record::of(p, Kind::kColumns, tensor.col_largest, tensor.owned_cols));
  }

  std::map<std::size_t, std::map<std::int64_t, double>> norms;  // by block
  for (const Record& record : to_owners(std::move(out))) {
    Tensor& tensor = tensors_[record.parameter];
    if (record.kind == Kind::kWeights) {
      norms[record.parameter][record.begin] = record.values[0];
    } else {
      combine(record.values, record.begin,
              record.kind == Kind::kRows ? tensor.row_largest : tensor.col_largest, true);
    }
  }
  std::vector<Record> agreed;
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    if (!mine(p)) continue;
    const Tensor& tensor = tensors_[p];
    const auto all = [](const auto& values) { return parallel::Range{0, std::ssize(values)}; };
    agreed.push_back(Record::of(p, Kind::kRows, tensor.row_largest, all(tensor.row_largest)));
    agreed.push_back(Record::of(p, Kind::kColumns, tensor.col_largest, all(tensor.col_largest)));
    double squares = 0;
    for (const auto& [block, part] : norms[p]) squares += part;
    agreed.push_back(
        {p, Kind::kWeights, 0, {std::sqrt(squares / static_cast<double>(tensor.slot->size))}});
  }
  for (const Record& record : to_all(agreed)) {
    Tensor& tensor = tensors_[record.parameter];
    if (record.kind == Kind::kRows) store(record.values, record.begin, tensor.row_largest);
    if (record.kind == Kind::kColumns) store(record.values, record.begin, tensor.col_largest);
    if (record.kind == Kind::kWeights) tensor.root_mean_square = record.values[0];
  }
}

void Adafactor::agree_on_moments(parallel::Engine& engine, std::span<const AdafactorStep> steps,
                                 std::int64_t number) {
  for (Tensor& tensor : tensors_) {
    tensor.row_sums.assign(tensor.row.size(), 0.0);
    tensor.col_sums.assign(tensor.col.size(), 0.0);
  }
  for_owned(engine, [&](Tensor& tensor, const parallel::UpdatePiece& piece) {
    const kernels::MatrixPart part = tensor.part(piece.grad, piece.begin);
    const kernels::GradientTreatment& treatment = steps[piece.parameter].treatment;
    if (tensor.factored) {
      kernels::add_row_squares(part, treatment, tensor.row_largest, tensor.row_sums);
    }
    kernels::add_column_squares(part, treatment, tensor.col_largest, tensor.col_sums);
  });
  std::vector<Record> out;
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    Tensor& tensor = tensors_[p];
    if (!tensor.owned.empty()) {
      if (tensor.factored) {
        out.push_back(Record::of(p, Kind::kRows, tensor.row_sums, tensor.owned_rows));
      }
      out.push_back(Record::of(p, Kind::kColumns, tensor.col_sums, tensor.owned_cols));
    }
    // The owner adds what comes, its own part too.
    std::ranges::fill(tensor.row_sums, 0.0);
    std::ranges::fill(tensor.col_sums, 0.0);
  }
  for (const Record& record : to_owners(std::move(out))) {
    Tensor& tensor = tensors_[record.parameter];
    combine(record.values, record.begin,
            record.kind == Kind::kRows ? tensor.row_sums : tensor.col_sums, false);
  }
  std::vector<Record> agreed;
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    Tensor& tensor = tensors_[p];
    if (!mine(p) || !tensor.slot->trains) continue;
    move_moments(tensor, number);
    agreed.push_back(Record::of(p, Kind::kRows, tensor.row, {0, std::ssize(tensor.row)}));
    agreed.push_back(Record::of(p, Kind::kColumns, tensor.col, {0, std::ssize(tensor.col)}));
  }
  for (const Record& record : to_all(agreed)) {
    Tensor& tensor = tensors_[record.parameter];
    store(record.values, record.begin, record.kind == Kind::kRows ? tensor.row : tensor.col);
  }
}

void Adafactor::move_moments(Tensor& tensor, std::int64_t number) const {
  const double beta2 = 1.0 - std::pow(static_cast<double>(number), options_.decay_rate);
  const auto move = [&](std::vector<float>& moment, const std::vector<double>& sums,
                        std::int64_t terms) {
    for (std::size_t i = 0; i < moment.size(); ++i) {
      const auto mean =
          static_cast<float>(sums[i] / static_cast<double>(terms) + options_.square_eps);
      moment[i] =
          std::fma(mean, static_cast<float>(1.0 - beta2), moment[i] * static_cast<float>(beta2));
    }
  };
  move(tensor.row, tensor.row_sums, tensor.cols);
  move(tensor.col, tensor.col_sums, tensor.rows);
}

void Adafactor::make_factors(Tensor& tensor) {
  const auto rows = static_cast<std::size_t>(tensor.rows);
  for (std::size_t first = 0; first < tensor.row.size(); first += rows) {
    double sum = 0;
    for (std::size_t r = 0; r < rows; ++r) sum += tensor.row[first + r];
    const auto mean = static_cast<float>(sum / static_cast<double>(rows));
    for (std::size_t r = 0; r < rows; ++r) {
      tensor.row_factors[first + r] = 1.0F / std::sqrt(tensor.row[first + r] / mean);
    }
  }
  std::ranges::transform(tensor.col, tensor.col_factors.begin(),
                         [](float moment) { return 1.0F / std::sqrt(moment); });
}

void Adafactor::agree_on_divisors(parallel::Engine& engine, std::span<const AdafactorStep> steps) {
  std::vector<Record> out;
  std::vector<float> direction(kBlock);
  for_owned(engine, [&](Tensor& tensor, const parallel::UpdatePiece& piece) {
    for_blocks(piece.element, piece.grad.size(),
               [&](std::int64_t block, std::size_t begin, std::size_t size) {
                 const std::span<float> run(direction.data(), size);
                 kernels::adafactor_direction(
                     tensor.part(piece.grad.subspan(begin, size),
                                 piece.begin + static_cast<std::int64_t>(begin)),
                     steps[piece.parameter].treatment, tensor.row_factors, tensor.col_factors, run);
                 out.push_back({piece.parameter, Kind::kUpdate, block, {square_sum(run)}});
               });
  });
  std::map<std::size_t, std::map<std::int64_t, double>> norms;
  for (const Record& record : to_owners(std::move(out))) {
    norms[record.parameter][record.begin] = record.values[0];
  }
  std::vector<Record> agreed;
  for (const auto& [parameter, blocks] : norms) {
    double squares = 0;
    for (const auto& [block, part] : blocks) squares += part;
    const auto size = static_cast<double>(tensors_[parameter].slot->size);
    agreed.push_back({parameter,
                      Kind::kUpdate,
                      0,
                      {std::max(1.0, std::sqrt(squares / size) / options_.clip_threshold)}});
  }
  for (const Record& record : to_all(agreed)) {
    tensors_[record.parameter].divisor = record.values[0];
  }
}

void Adafactor::apply(parallel::Engine& engine, std::span<const AdafactorStep> steps,
                      std::uint64_t rounding) {
  std::vector<float> direction(kBlock);
  const kernels::GradientTreatment treatment{.rounding = rounding};
  const std::size_t moment_size = c10::elementSize(engine.moments());
  engine.for_each_update([&](const parallel::UpdatePiece& piece) {
    const Tensor& tensor = tensors_[piece.parameter];
    const AdafactorStep& step = steps[piece.parameter];
    const double scale =
        options_.scale_parameter ? std::max(options_.scale_eps, tensor.root_mean_square) : 1.0;
    const kernels::AdafactorRule rule{scale * step.rate, tensor.divisor, beta1_, step.weight_decay};
    for_blocks(piece.element, piece.grad.size(),
               [&](std::int64_t /*block*/, std::size_t begin, std::size_t size) {
                 const std::span<float> run(direction.data(), size);
                 kernels::adafactor_direction(
                     tensor.part(piece.grad.subspan(begin, size),
                                 piece.begin + static_cast<std::int64_t>(begin)),
                     step.treatment, tensor.row_factors, tensor.col_factors, run);
                 kernels::UpdateRange range{run, piece.master.subspan(begin, size)};
                 if (beta1_ != 0) range.moments[0] = piece.moments[0] + begin * moment_size;
                 range.moment_type = number_type(engine.moments());
                 range.first_element = piece.element + begin;
                 if (piece.work != nullptr) {
                   range.work = {piece.work + begin * c10::elementSize(piece.work_type),
                                 number_type(piece.work_type)};
                 }
                 kernels::update(rule, treatment, range);
               });
  });
}

void Adafactor::update(parallel::Engine& engine, std::span<const AdafactorStep> steps,
                       std::int64_t number, std::uint64_t rounding) {
  agree_on_largest(engine);
  agree_on_moments(engine, steps, number);
  for (Tensor& tensor : tensors_) {
    if (tensor.slot->trains) make_factors(tensor);
  }
  agree_on_divisors(engine, steps);
  apply(engine, steps, rounding);
}

std::vector<ExtraTensor> Adafactor::extra_state() {
  std::vector<ExtraTensor> state;
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    Tensor& tensor = tensors_[p];
    const std::vector<std::int64_t>& shape = tensor.slot->shape;
    if (!tensor.factored) {
      state.push_back({"exp_avg_sq", p, shape, tensor.col, mine(p)});
      continue;
    }
    std::vector<std::int64_t> rows(shape.begin(), shape.end() - 1);
    std::vector<std::int64_t> cols(shape.begin(), shape.end() - 2);
    cols.push_back(shape.back());
    state.push_back({"exp_avg_sq_row", p, rows, tensor.row, mine(p)});
    state.push_back({"exp_avg_sq_col", p, cols, tensor.col, mine(p)});
  }
  return state;
}

}  // namespace trireme::optim
