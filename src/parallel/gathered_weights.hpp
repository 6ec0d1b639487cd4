// Weights of which a node holds only the units in use. A unit is gathered from the ranks of its
// group when an operator first touches it, or before that, when the order of touches is known from
// the pass before; the unit that is needed again last makes room for it. All ranks touch in the
// same order and decide alike, so that no message about it is needed. Private to the room.
#pragma once

#include "trireme/base/deadline.hpp"
#include "trireme/parallel/team.hpp"
#include "trireme/parallel/weights.hpp"

#include "parallel/fabric.hpp"
#include "parallel/touch_order.hpp"
#include "parallel/unit_file.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace trireme::parallel {

class GatheredWeights : public Weights {
 public:
  // Units present at once: the one in use, the one before, the one to come.
  static constexpr std::size_t kPresentUnits = 3;

  GatheredWeights(Fabric& fabric, const Layout& layout, const WeightOptions& options);
  ~GatheredWeights() override;

  bool resident() const override { return false; }
  void attach(std::size_t unit, std::vector<at::Tensor> parameters) override;
  std::byte* target(std::size_t unit, std::int64_t offset) override;
  void publish(bool frozen_too) override;
  void begin_pass(Pass pass) override;
  bool on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  void progress() override;
  Times take_times() override { return std::exchange(times_, {}); }
  std::string take_note() override;
  Bytes held_bytes() const override {
    return Bytes(file_ ? 0 : static_cast<std::int64_t>(shard_.bytes().size()));
  }
  Bytes disk_bytes() const override { return file_ ? file_->disk_bytes() : Bytes(0); }
  memory::TierStats take_tier_stats() override {
    return file_ ? file_->take_stats() : memory::TierStats{};
  }
  Bytes transient_bytes() const override;

 private:
  static constexpr std::size_t kNone = TouchOrder::kNone;

  struct Control;
  // A place in the window.
  struct Place {
    std::size_t at = 0;  // byte offset
    std::size_t unit = kNone;
    std::uint64_t touched = 0;
  };
  // A unit on its way.
  struct Gather {
    std::size_t unit = kNone;
    std::size_t place = 0;
    std::uint64_t number = 0;
    bool moving = false;  // all local ranks have left the place
    Clock::time_point began;
  };

  Control& control(int local) const;
  std::byte* window_at(std::size_t place) const;
  bool is_present(std::size_t unit) const { return place_of_[unit] != kNone; }
  bool is_permanent(std::size_t place) const { return place >= num_changing_places_; }
  void need(std::size_t unit, std::span<const std::size_t> needed);
  void look_ahead(std::span<const std::size_t> needed);
  std::size_t victim(std::span<const std::size_t> needed, std::size_t unit) const;
  void gather_permanent();
  void begin_gather(std::size_t unit, std::size_t place);
  void move();
  void finish_gather();
  void forget(std::size_t unit);
  std::span<std::byte> own_shard(std::size_t unit) const;
  std::size_t own_bytes(std::size_t unit) const;
  void stage(std::size_t unit);
  void begin_exchange();
  std::span<std::byte> in_window(std::size_t unit, std::size_t place, Range range) const;

  Fabric& fabric_;
  Team team_;
  std::unordered_map<c10::StorageImpl*, std::size_t> unit_of_;
  std::vector<std::vector<at::Tensor>> parameters_;  // by unit
  std::vector<std::size_t> shard_at_;                // byte offset of this rank's shards in shard_
  // In memory: all of this rank's shards. On disk: the one that is being written.
  Buffer shard_;
  std::unique_ptr<UnitFile> file_;
  std::size_t staged_ = kNone;      // the unit whose new shard is in shard_, on its way to disk
  std::unique_ptr<Window> window_;  // of the first local rank of the group
  std::unique_ptr<comm::SharedSegments> control_;
  std::vector<Place> places_;  // those of permanent units last
  std::size_t num_changing_places_ = 0;
  bool own_places_;                    // each unit has its own place
  std::vector<std::size_t> place_of_;  // by unit; kNone: absent
  std::uint64_t clock_ = 0;

  std::unique_ptr<Exchange> exchange_;
  std::optional<Gather> pending_;
  std::uint64_t num_gathers_ = 0;
  std::array<TouchOrder, 2> orders_;  // by pass
  TouchOrder* order_ = nullptr;
  Times times_;
  bool noted_ = false;
};

}  // namespace trireme::parallel
