#include "penstock/train/rank_records.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/comm/channels.h"

namespace penstock::train {

namespace {

constexpr int kRounds = 32;  // of comparing clocks

std::string what_for() {
  return "the record of a step";
}

void send_doubles(comm::Group& group,
                  int32_t peer,
                  int64_t channel,
                  const std::vector<double>& values) {
  comm::Ticket ticket = group.send(
      peer, channel, values.data(), static_cast<int64_t>(values.size() * sizeof(double)));
  group.wait(ticket, what_for);
}

std::vector<double> receive_doubles(comm::Group& group,
                                    int32_t peer,
                                    int64_t channel,
                                    size_t count) {
  std::vector<double> values(count);
  group.receive(
      peer, channel, values.data(), static_cast<int64_t>(count * sizeof(double)), what_for);
  return values;
}

// How far the peer's clock is before this rank's. The answer was written at some moment of the
// trip; the middle of the shortest trip is the best guess.
double clock_ahead(comm::Group& group, int32_t peer, int64_t channel) {
  double shortest = std::numeric_limits<double>::infinity();
  double ahead = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double asked = now_seconds();
    send_doubles(group, peer, channel, {asked});
    const double theirs = receive_doubles(group, peer, channel, 1).front();
    const double answered = now_seconds();
    if (answered - asked < shortest) {
      shortest = answered - asked;
      ahead = theirs - (asked + answered) / 2;
    }
  }
  return ahead;
}

void tell_clock(comm::Group& group, int64_t channel) {
  for (int round = 0; round < kRounds; ++round) {
    receive_doubles(group, /*peer=*/0, channel, 1);
    send_doubles(group, /*peer=*/0, channel, {now_seconds()});
  }
}

// A record as numbers: when it began, its peak, a pair for each span, a pair for each point of
// memory. Bytes are exact in a double up to 8 PiB.
std::vector<double> pack(const StepRecord& record) {
  const program::RankTimeline& rank = record.timeline.ranks.front();
  std::vector<double> values{record.began_s,
                             static_cast<double>(rank.peak_bytes),
                             static_cast<double>(rank.peak_instruction)};
  for (const program::Span& span : rank.spans) {
    values.insert(values.end(), {span.start, span.end});
  }
  for (const program::MemoryPoint& point : rank.memory) {
    values.insert(values.end(), {point.seconds, static_cast<double>(point.bytes)});
  }
  return values;
}

// A point of memory at the beginning, and two for each instruction.
size_t packed_count(size_t instructions) {
  return 3 + 2 * instructions + 2 * (2 * instructions + 1);
}

StepRecord unpack(const std::vector<double>& values, const program::RankProgram& program) {
  StepRecord record{.timeline = {.ranks = {{}}}, .began_s = values[0]};
  program::RankTimeline& rank = record.timeline.ranks.front();
  rank.peak_bytes = static_cast<int64_t>(values[1]);
  rank.peak_instruction = static_cast<int32_t>(values[2]);
  size_t at = 3;
  for (size_t i = 0; i < program.instructions.size(); ++i, at += 2) {
    rank.spans.push_back({static_cast<int32_t>(i), values[at], values[at + 1]});
    rank.busy_seconds[program.instructions[i].resource] += values[at + 1] - values[at];
  }
  for (; at < values.size(); at += 2) {
    rank.memory.push_back({values[at], static_cast<int64_t>(values[at + 1])});
  }
  return record;
}

// What was held when the step began was held before, too: the first point of memory stays.
void begin_later(program::RankTimeline& rank, double seconds) {
  for (program::Span& span : rank.spans) {
    span.start += seconds;
    span.end += seconds;
  }
  for (size_t i = 1; i < rank.memory.size(); ++i) {
    rank.memory[i].seconds += seconds;
  }
}

program::Timeline put_together(std::vector<StepRecord> records) {
  double first = records.front().began_s;
  for (const StepRecord& record : records) {
    first = std::min(first, record.began_s);
  }
  program::Timeline whole;
  for (StepRecord& record : records) {
    program::RankTimeline& rank = record.timeline.ranks.front();
    begin_later(rank, record.began_s - first);
    for (const program::Span& span : rank.spans) {
      whole.seconds = std::max(whole.seconds, span.end);
    }
    whole.ranks.push_back(std::move(rank));
  }
  return whole;
}

}  // namespace

std::optional<program::Timeline> gather_step(const StepRecords& records,
                                             const program::Program& program,
                                             comm::Group& group) {
  PENSTOCK_CHECK(program.ranks.size() == static_cast<size_t>(group.size()),
                 "a program of ",
                 program.ranks.size(),
                 " ranks for a group of ",
                 group.size());
  const std::optional<size_t> median = records.median();
  if (!median) {
    return std::nullopt;
  }
  if (group.size() == 1) {
    return records.last()[*median].timeline;
  }
  const int64_t channel = comm::record_channel(program.loss_index());
  auto chosen = static_cast<int64_t>(*median);
  group.broadcast(0, &chosen, sizeof chosen, what_for);
  const StepRecord& own = records.last()[static_cast<size_t>(chosen)];
  if (group.rank() > 0) {
    if (!group.shares_memory()) {
      tell_clock(group, channel);
    }
    send_doubles(group, /*peer=*/0, channel, pack(own));
    return std::nullopt;
  }
  std::vector<StepRecord> all{own};
  for (int32_t peer = 1; peer < group.size(); ++peer) {
    const double ahead = group.shares_memory() ? 0 : clock_ahead(group, peer, channel);
    const program::RankProgram& rank = program.ranks[static_cast<size_t>(peer)];
    all.push_back(unpack(
        receive_doubles(group, peer, channel, packed_count(rank.instructions.size())), rank));
    all.back().began_s -= ahead;
  }
  return put_together(std::move(all));
}

}  // namespace penstock::train
