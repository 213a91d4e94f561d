// A second opinion on programs: runs one by what its values contain, not by their names. It asks
// whether the step would leave exactly what a plain step on one device leaves, within its memory and
// without waiting for ever. It shares no code and no bookkeeping with the verifier.
//
// Ranks take turns: each goes as far as it can. What is sent lies in a queue of its channel until the
// peer takes it, and whoever frees it waits for that. A gather or reduce happens when all ranks of
// its group have come to theirs. Who comes to one waits for the others, unless it is on a line: then
// only who uses what it changes, or changes what it reads, waits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

#include "program/content.h"
#include "program/content_facts.h"
#include "program/content_memory.h"
#include "program/content_rank.h"

namespace penstock::test {

class ContentInterpreter {
 public:
  using Instruction = program::Instruction;
  using Op = program::Op;
  using Value = program::Value;
  using ValueId = program::ValueId;
  using ValueKind = program::ValueKind;

  explicit ContentInterpreter(const program::Program& program) : program_(program) {}

  // What goes wrong first, or nothing: then the program is harmless.
  std::optional<std::string> run() {
    try {
      const ContentFacts facts(program_);
      facts_ = &facts;
      for (int32_t rank = 0; rank < facts.num_ranks(); ++rank) {
        ranks_.emplace_back(facts, rank);
      }
      run_all();
      finish();
    } catch (const Harm& harm) {
      return harm.text;
    }
    return std::nullopt;
  }

  // Of each rank, after a run.
  std::vector<RankMemory::Bytes> peaks() const {
    std::vector<RankMemory::Bytes> all;
    for (const Rank& rank : ranks_) {
      all.push_back(rank.memory.peaks());
    }
    return all;
  }

 private:
  // From, to, kind, layer, element.
  using ChannelKey = std::tuple<int32_t, int32_t, ValueKind, int32_t, int32_t>;
  struct Message {
    ValueId id = -1;  // of the sender
    Content content;
    int64_t bytes = 0;
  };
  // Gathers and reduces of one group: by its number and first rank.
  using GroupKey = std::pair<int32_t, int32_t>;
  struct Meeting {
    std::vector<std::pair<int32_t, const Instruction*>> arrived;  // rank and what it came with
    bool is_over = false;
  };
  struct Rank {
    Rank(const ContentFacts& facts, int32_t number)
        : program(facts.rank(number)), contents(facts, number), memory(program) {}

    const program::RankProgram& program;
    RankContents contents;
    RankMemory memory;
    size_t next = 0;
    bool has_come = false;                     // to the next instruction
    std::map<ValueId, int> on_the_way;         // sent and not yet received
    std::map<GroupKey, size_t> met;            // gathers and reduces of a group so far
    std::vector<const Instruction*> on_lines;  // under way
  };

  Rank& rank(int32_t number) { return ranks_[static_cast<size_t>(number)]; }

  void run_all() {
    const auto is_done = [](const Rank& rank) {
      return rank.next == rank.program.instructions.size();
    };
    while (!std::all_of(ranks_.begin(), ranks_.end(), is_done)) {
      has_moved_ = false;
      for (int32_t number = 0; number < facts_->num_ranks(); ++number) {
        while (!is_done(rank(number)) && pass(number)) {
        }
      }
      if (!has_moved_) {
        harm("ranks wait for ever");
      }
    }
  }

  // Whether the rank got over its next instruction. It moves when it comes to one, too: others may
  // find it there.
  bool pass(int32_t number) {
    Rank& here = rank(number);
    const Instruction& one = here.program.instructions[here.next];
    if (!here.has_come) {
      if (!can_begin(here, one)) {
        return false;
      }
      here.has_come = has_moved_ = true;
      come_to(number, one);
    }
    if (must_wait(number, one)) {
      return false;
    }
    if (one.op == Op::Receive) {
      receive(number, one);
    } else if (!is_exchange(one) && one.op != Op::Send) {
      here.contents.work(one);
    }
    here.contents.leave(one);
    here.has_come = false;
    has_moved_ = true;
    ++here.next;
    return true;
  }

  static bool is_exchange(const Instruction& one) {
    return one.op == Op::Gather || one.op == Op::Reduce || one.op == Op::Exchange ||
           one.op == Op::Merge;
  }
  static bool is_on_line(const Instruction& one) {
    return one.resource.kind == program::ResourceKind::Line;
  }

  // Nothing that it reads is being changed on a line, and nothing that it changes is used there.
  // Those of one line come one after the other anyway.
  static bool is_used_on_lines(const Rank& here, const Instruction& one, ValueId id, bool changes) {
    return std::any_of(here.on_lines.begin(), here.on_lines.end(), [&](const Instruction* other) {
      const bool is_same_line = is_on_line(one) && one.resource == other->resource;
      return !is_same_line && (has(other->makes, id) || has(other->sets, id) ||
                               has(other->updates, id) || (changes && has(other->reads, id)));
    });
  }
  static bool can_begin(const Rank& here, const Instruction& one) {
    for (const auto* list : {&one.reads, &one.sets, &one.updates}) {
      for (const ValueId id : *list) {
        if (is_used_on_lines(here, one, id, list != &one.reads)) {
          return false;
        }
      }
    }
    // What frees a value that was sent begins when the peer has it.
    return std::none_of(one.frees.begin(), one.frees.end(), [&](ValueId id) {
      const auto sent = here.on_the_way.find(id);
      return sent != here.on_the_way.end() && sent->second > 0;
    });
  }

  void come_to(int32_t number, const Instruction& one) {
    Rank& here = rank(number);
    here.contents.enter(one);
    here.memory.pass(one);
    if (one.op == Op::Send) {
      send(number, one);
    } else if (is_exchange(one)) {
      if (is_on_line(one)) {
        if (!one.frees.empty()) {
          harm("frees something, and nobody knows when");
        }
        here.on_lines.push_back(&one);
      }
      join(number, one);
    }
  }

  bool must_wait(int32_t number, const Instruction& one) {
    Rank& here = rank(number);
    if (one.op == Op::Receive && channels_[channel_of(number, one)].empty()) {
      return true;
    }
    const bool stands_still = is_exchange(one) && !is_on_line(one);
    if (stands_still && !meeting_of(number, one, here.met[group_of(number, one)] - 1).is_over) {
      return true;
    }
    return std::any_of(one.frees.begin(), one.frees.end(), [&](ValueId id) {
      const auto sent = here.on_the_way.find(id);
      return (sent != here.on_the_way.end() && sent->second > 0) ||
             is_used_on_lines(here, one, id, /*changes=*/true);
    });
  }

  // ---- Messages

  // The value that is sent, or received; it is an activation or gradient of the layer, or the element,
  // that the instruction names.
  ValueId moved_value(int32_t number, const Instruction& one) {
    const std::vector<ValueId>& list = one.op == Op::Send ? one.reads : one.makes;
    const ValueId id = rank(number).contents.find(list, [&](const Value& value) {
      return (value.kind == ValueKind::Activation || value.kind == ValueKind::Gradient ||
              value.kind == ValueKind::Carried || value.kind == ValueKind::CarriedGradient) &&
             value.layer == one.layer && value.element == one.element &&
             value.micro_batch == one.micro_batch;
    });
    if (id < 0) {
      harm("moves nothing of its layer and micro-batch");
    }
    return id;
  }
  ChannelKey channel_of(int32_t number, const Instruction& one) {
    const Value& value = rank(number).contents.value(moved_value(number, one));
    const int32_t peer = one.resource.index;
    return one.op == Op::Send ? ChannelKey{number, peer, value.kind, value.layer, value.element}
                              : ChannelKey{peer, number, value.kind, value.layer, value.element};
  }

  void send(int32_t number, const Instruction& one) {
    Rank& here = rank(number);
    const ValueId id = moved_value(number, one);
    const int64_t bytes = here.contents.value(id).bytes;
    if (one.sent_bytes != bytes) {
      harm("says that it sends other bytes than it does");
    }
    here.contents.begin_work(one);
    here.contents.end_work(one);
    ++here.on_the_way[id];
    channels_[channel_of(number, one)].push_back({id, here.contents.content(id), bytes});
  }

  void receive(int32_t number, const Instruction& one) {
    Rank& here = rank(number);
    std::deque<Message>& queue = channels_[channel_of(number, one)];
    Message message = std::move(queue.front());
    queue.pop_front();
    --rank(one.resource.index).on_the_way[message.id];
    const ValueId id = moved_value(number, one);
    const Value& value = here.contents.value(id);
    if (message.content.micro_batch != value.micro_batch || message.bytes != value.bytes) {
      harm("receives something else");
    }
    here.contents.begin_work(one);
    here.contents.make(one, id, std::move(message.content));
    here.contents.end_work(one);
  }

  // ---- Meetings

  std::vector<int32_t> members_of(int32_t number, const Instruction& one) const {
    return facts_->members(one.group, number);
  }
  GroupKey group_of(int32_t number, const Instruction& one) const {
    const std::vector<int32_t> members = members_of(number, one);
    if (!has(members, number)) {
      harm("is in no such group");
    }
    return {one.group, members.front()};
  }
  Meeting& meeting_of(int32_t number, const Instruction& one, size_t index) {
    std::deque<Meeting>& all = meetings_[group_of(number, one)];
    if (all.size() <= index) {
      all.resize(index + 1);
    }
    return all[index];
  }

  // Who comes last does it for all.
  void join(int32_t number, const Instruction& one) {
    Meeting& meeting = meeting_of(number, one, rank(number).met[group_of(number, one)]++);
    meeting.arrived.emplace_back(number, &one);
    check_alike(*meeting.arrived.front().second, one);
    if (meeting.arrived.size() < members_of(number, one).size()) {
      return;
    }
    meeting.is_over = true;
    check_sizes(meeting);
    exchange(meeting);
    for (const auto& [member, instruction] : meeting.arrived) {
      std::erase(rank(member).on_lines, instruction);
    }
  }

  static void check_alike(const Instruction& one, const Instruction& two) {
    if (one.op != two.op || one.units != two.units || one.scatters != two.scatters ||
        one.micro_batch != two.micro_batch || one.resource.kind != two.resource.kind) {
      harm("meets something else");
    }
  }

  // What replicas have whole has one size: what is gathered and reduced, and where it goes.
  void check_sizes(const Meeting& meeting) {
    const Instruction& first = *meeting.arrived.front().second;
    const bool is_of_replicas =
        (!first.units.empty() || first.op == Op::Merge) &&
        !program_.groups[static_cast<size_t>(first.group)].axes.contains(comm::Axis::Pipeline);
    std::set<std::vector<int64_t>> sizes;
    for (const auto& [member, instruction] : meeting.arrived) {
      int64_t passing = 0, staying = 0;
      for (const auto* list : {&instruction->reads, &instruction->makes, &instruction->updates}) {
        for (const ValueId id : *list) {
          const Value& value = rank(member).contents.value(id);
          if (!program::info_of(value.kind).is_persistent) {
            passing += value.bytes;
          } else if (is_of_replicas && list == &instruction->updates && value.slices.empty()) {
            staying += value.bytes;
          }
        }
      }
      sizes.insert({passing, staying});
    }
    if (sizes.size() > 1) {
      harm("meets something of another size");
    }
  }

  void exchange(const Meeting& meeting) {
    for (const auto& [member, instruction] : meeting.arrived) {
      rank(member).contents.begin_work(*instruction);
    }
    const Instruction& first = *meeting.arrived.front().second;
    if (first.op == Op::Exchange) {
      average(meeting);
    } else if (first.op == Op::Merge) {
      merge(meeting);
    } else if (first.op == Op::Gather && first.units.empty()) {
      gather_of_no_unit(meeting);
    } else if (first.units.size() != 1 || first.units[0] < 0 ||
               static_cast<size_t>(first.units[0]) >= program_.units.size()) {
      harm("is of one unit");
    } else if (first.op == Op::Gather) {
      gather(meeting, first.units[0]);
    } else {
      reduce(meeting, first.units[0]);
    }
    // What each of them changed is told by its own end; begin_work() of one does not touch others.
    for (const auto& [member, instruction] : meeting.arrived) {
      rank(member).contents.end_work(*instruction);
    }
  }

  // Each has what the forwards of all have changed of a layer's state.
  void merge(const Meeting& meeting) {
    std::map<int32_t, Gradient> sums;  // by layer
    const auto for_states = [&](const auto& use) {
      for (const auto& [member, instruction] : meeting.arrived) {
        RankContents& contents = rank(member).contents;
        for (const ValueId id : RankContents::changes(*instruction)) {
          if (contents.value(id).kind == ValueKind::LayerState) {
            use(contents, *instruction, id);
          }
        }
      }
    };
    for_states([&](RankContents& contents, const Instruction&, ValueId id) {
      const int32_t layer = contents.value(id).layer;
      const auto [sum, is_first] = sums.try_emplace(layer, contents.content(id).gradient);
      if (!is_first) {
        sum->second.add(contents.content(id).gradient, 0);
      }
    });
    for_states([&](RankContents& contents, const Instruction& one, ValueId id) {
      const bool loses_old = contents.change(one, id);
      contents.content(id).gradient = sums.at(contents.value(id).layer);
      if (loses_old) {
        contents.content(id).gradient.spoil();
      }
    });
  }

  // Its first member says what it is.
  void gather_of_no_unit(const Meeting& meeting) {
    const auto& [first, instruction] = meeting.arrived.front();
    const auto reads = [this, member = first, one = instruction](ValueKind kind) {
      return rank(member).contents.find_kind(one->reads, kind) >= 0;
    };
    if (reads(ValueKind::Squares)) {
      return gather_sums(meeting, ValueKind::Squares, ValueKind::AllSquares);
    }
    require_all_replicas(meeting);
    if (reads(ValueKind::Sketches)) {
      return gather_sums(meeting, ValueKind::Sketches, ValueKind::AllSketches);
    }
    if (reads(ValueKind::Lengths)) {
      return gather_sums(meeting, ValueKind::Lengths, ValueKind::AllLengths);
    }
    for (const auto& [member, one] : meeting.arrived) {
      rank(member).contents.fill(*one);
    }
  }
  // What an optimizer exchanges goes by the parameters that replicas of one stage have.
  void require_all_replicas(const Meeting& meeting) const {
    for (const auto& [member, one] : meeting.arrived) {
      if (facts_->stage_of(member) != facts_->stage_of(meeting.arrived.front().first)) {
        harm("meets ranks that have other units");
      }
    }
    if (meeting.arrived.size() != facts_->replicas()) {
      harm("lacks replicas");
    }
  }

  // All have the sums of all, where two say the same of an element.
  void gather_sums(const Meeting& meeting, ValueKind own_kind, ValueKind all_kind) {
    Content all{.kind = all_kind};
    int32_t version = kUnknown;
    for (const auto& [member, instruction] : meeting.arrived) {
      RankContents& contents = rank(member).contents;
      const ValueId own = contents.find_kind(instruction->reads, own_kind);
      if (own < 0) {
        harm("lacks what it needs");
      }
      version = contents.value(own).version;
      add_squares(all.squares, contents.content(own).squares);
      all.is_estimate = all.is_estimate || contents.content(own).is_estimate;
    }
    for (const auto& [member, instruction] : meeting.arrived) {
      RankContents& contents = rank(member).contents;
      const ValueId made = contents.find_kind(instruction->makes, all_kind);
      if (made < 0) {
        harm("does not keep the sums");
      }
      contents.require_version(contents.value(made), version);
      contents.make(*instruction, made, all);
    }
  }

  void average(const Meeting& meeting) {
    require_all_replicas(meeting);
    Content all;
    for (const auto& [member, instruction] : meeting.arrived) {
      RankContents& contents = rank(member).contents;
      const ValueId ready = contents.find_kind(instruction->reads, ValueKind::Prepared);
      if (ready < 0) {
        harm("lacks what it averages");
      }
      const Content::Prepared prepared = contents.content(ready).prepared;
      if (all.prepared != Content::Prepared::No && all.prepared != prepared) {
        harm("averages different things");
      }
      all.prepared = prepared;
      add_squares(all.squares, contents.content(ready).squares);
    }
    for (const auto& [member, instruction] : meeting.arrived) {
      rank(member).contents.take_average(*instruction, all);
    }
  }

  // Stages that have the same unit square it alike.
  static void add_squares(SquaresContent& all, const SquaresContent& more) {
    all.resize(more.size());
    for (size_t replica = 0; replica < more.size(); ++replica) {
      all[replica].resize(more[replica].size());
      for (size_t unit = 0; unit < more[replica].size(); ++unit) {
        const std::vector<int32_t>& part = more[replica][unit];
        std::vector<int32_t>& into = all[replica][unit];
        into.resize(std::max(into.size(), part.size()), kAbsent);
        for (size_t element = 0; element < part.size(); ++element) {
          int32_t& known = into[element];
          if (part[element] != kAbsent) {
            known = known == kAbsent || known == part[element] ? part[element] : kUnknown;
          }
        }
      }
    }
  }

  // Of each element: what its owner has in its weights; nobody knows where it has several or none.
  std::vector<int32_t> weights_of_owners(const Meeting& meeting, int32_t unit) {
    std::vector<int32_t> all(num_elements(program_.units[static_cast<size_t>(unit)]), kAbsent);
    for (const auto& [member, instruction] : meeting.arrived) {
      const ValueId master = facts_->held(member, ValueKind::Master, unit);
      if (master < 0) {
        harm("has nothing to give");
      }
      const std::vector<bool> is_own = facts_->moved(member, unit);
      for (size_t element = 0; element < all.size(); ++element) {
        if (is_own[element]) {
          const int32_t updates = rank(member).contents.content(master).updates[element];
          all[element] = all[element] == kAbsent ? updates : kUnknown;
        }
      }
    }
    return all;
  }

  void gather(const Meeting& meeting, int32_t unit) {
    const std::vector<int32_t> all = weights_of_owners(meeting, unit);
    for (const auto& [member, instruction] : meeting.arrived) {
      RankContents& contents = rank(member).contents;
      const int32_t micro_batch = instruction->micro_batch;
      const ValueId made = contents.find(instruction->makes, [&](const Value& value) {
        return value.kind == ValueKind::Gathered && value.unit == unit &&
               value.micro_batch == micro_batch;
      });
      const ValueId master = facts_->held(member, ValueKind::Master, unit);
      const ValueId copy = facts_->held(member, ValueKind::Compute, unit);
      const std::vector<ValueId> changed = RankContents::changes(*instruction);
      const ValueId target = copy >= 0 ? copy : master;
      const bool reads_master = has(instruction->reads, master);
      if (made >= 0) {
        if (!reads_master) {
          harm("gives weights that it does not read");
        }
        contents.make(*instruction, made, {.kind = ValueKind::Gathered, .updates = all});
      } else if (has(changed, target)) {
        if (copy >= 0 && !reads_master) {
          harm("gives weights that it does not read");
        }
        const bool loses_old = contents.change(*instruction, target);
        const std::vector<bool> is_own = facts_->moved(member, unit);
        for (size_t element = 0; element < all.size(); ++element) {
          if (!is_own[element] || loses_old) {
            contents.content(target).updates[element] =
                is_own[element] || all[element] < 0 ? kUnknown : all[element];
          }
        }
      } else {
        harm("gathers nothing");
      }
    }
  }

  // Buckets are whole and go into the slices of their targets; sums are reduced where they are.
  void reduce(const Meeting& meeting, int32_t unit) {
    Gradient all = facts_->empty_gradient(unit);
    for (const auto& [member, instruction] : meeting.arrived) {
      RankContents& contents = rank(member).contents;
      const int32_t micro_batch = instruction->micro_batch;
      const ValueId bucket = contents.find(instruction->reads, [&](const Value& value) {
        return value.kind == ValueKind::Bucket && value.unit == unit &&
               value.micro_batch == micro_batch;
      });
      const ValueId sum =
          contents.find_of_unit(RankContents::changes(*instruction), ValueKind::GradientSum, unit);
      const ValueId from = bucket >= 0 ? bucket : sum;
      if (from < 0) {
        harm("lacks what it reduces");
      }
      const std::vector<bool> is_there =
          elements_of(facts_->unit(unit), contents.value(from).slices);
      for (size_t element = 0; element < is_there.size(); ++element) {
        all.add(contents.content(from).gradient, element);
        if (!is_there[element] || (bucket < 0 && has(instruction->sets, sum))) {
          all.spoil(element);
        }
      }
    }
    if (meeting.arrived.front().second->scatters) {
      spoil_where_not_one_takes(meeting, unit, all);
    }
    for (const auto& [member, instruction] : meeting.arrived) {
      take_sum(member, *instruction, unit, all);
    }
  }
  // What is scattered goes to one rank each.
  void spoil_where_not_one_takes(const Meeting& meeting, int32_t unit, Gradient& all) {
    std::vector<int> takers(num_elements(facts_->unit(unit)), 0);
    for (const auto& [member, instruction] : meeting.arrived) {
      const std::vector<bool> moved = facts_->moved(member, unit);
      for (size_t element = 0; element < takers.size(); ++element) {
        takers[element] += moved[element] ? 1 : 0;
      }
    }
    for (size_t element = 0; element < takers.size(); ++element) {
      if (takers[element] != 1) {
        all.spoil(element);
      }
    }
  }
  void take_sum(int32_t member, const Instruction& one, int32_t unit, const Gradient& all) {
    RankContents& contents = rank(member).contents;
    const std::vector<ValueId> changed = RankContents::changes(one);
    const ValueId target = contents.find(changed, [&](const Value& value) {
      return value.unit == unit &&
             (value.kind == ValueKind::GradientSum || value.kind == ValueKind::Share);
    });
    if (target < 0) {
      harm("has nowhere to put the sum");
    }
    const bool is_bucket = contents.find(one.reads, [](const Value& value) {
      return value.kind == ValueKind::Bucket;
    }) >= 0;
    if (is_bucket && !one.scatters && !contents.value(target).slices.empty()) {
      harm("has no room for the whole sum");
    }
    const bool begins = contents.change(one, target) || !is_bucket;
    const std::vector<bool> moved = facts_->moved(member, unit);
    const std::vector<bool> is_there =
        elements_of(facts_->unit(unit), contents.value(target).slices);
    Gradient& gradient = contents.content(target).gradient;
    for (size_t element = 0; element < is_there.size(); ++element) {
      if (begins) {
        gradient.clear(element);
      }
      gradient.add(all, element);
      if (!is_there[element] || (one.scatters && !moved[element])) {
        gradient.spoil(element);
      }
    }
  }

  // ---- The end

  void finish() {
    std::map<std::pair<int32_t, int32_t>, int> workers;  // by replica and layer
    for (int32_t number = 0; number < facts_->num_ranks(); ++number) {
      const Rank& here = rank(number);
      if (!here.on_lines.empty()) {
        harm("a line never comes to its end");
      }
      here.contents.finish();
      for (int32_t layer = 0; layer <= facts_->loss_index(); ++layer) {
        workers[{facts_->replica_of(number), layer}] += facts_->works_at(number, layer) ? 1 : 0;
      }
    }
    for (const auto& [place, count] : workers) {
      if (count != 1) {
        harm("a layer is nobody's, or of several ranks");
      }
    }
    for (const auto& [channel, queue] : channels_) {
      if (!queue.empty()) {
        harm("sends what nobody receives");
      }
    }
  }

  const program::Program& program_;
  const ContentFacts* facts_ = nullptr;
  std::deque<Rank> ranks_;
  bool has_moved_ = false;
  std::map<ChannelKey, std::deque<Message>> channels_;
  std::map<GroupKey, std::deque<Meeting>> meetings_;
};

}  // namespace penstock::test
