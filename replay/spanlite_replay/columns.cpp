// The loops of `_columns` and `_edges` that numpy needs many passes for. `_native.py` compiles and
// calls them, and both modules can do without.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

uint64_t mixed(uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15u;
  return value ^ (value >> 29);
}

uint64_t table_size(int64_t at_least) {
  uint64_t size = 64;
  while (size < static_cast<uint64_t>(at_least)) size *= 2;
  return size;
}

}  // namespace

extern "C" {

// Where each wanted id is first among the others, -1 for nowhere. Ids that follow each other lie
// side by side in the table.
void spanlite_find(const int64_t* wanted, int64_t n, const int64_t* among, int64_t m,
                   int64_t* found) {
  std::vector<int32_t> table(table_size(m * 2), -1);
  const uint64_t mask = table.size() - 1;
  const auto slot_of = [mask](int64_t id) {
    const auto bits = static_cast<uint64_t>(id);
    return ((mixed(bits >> 4) << 4) | (bits & 15)) & mask;
  };
  for (int64_t i = 0; i < m; ++i) {
    uint64_t slot = slot_of(among[i]);
    while (table[slot] >= 0 && among[table[slot]] != among[i]) slot = (slot + 1) & mask;
    if (table[slot] < 0) table[slot] = static_cast<int32_t>(i);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0 && wanted[i] == wanted[i - 1]) {
      found[i] = found[i - 1];
      continue;
    }
    uint64_t slot = slot_of(wanted[i]);
    while (table[slot] >= 0 && among[table[slot]] != wanted[i]) slot = (slot + 1) & mask;
    found[i] = table[slot];
  }
}

// Calls at `at`, in order of start: which are inside none of their thread (`outermost`), and the
// one that each is part of (`leader`); both by position, as `start`, `end` and `thread` are.
void spanlite_outermost(const int64_t* at, int64_t n, const int64_t* start, const int64_t* end,
                        const int32_t* thread, int64_t threads, uint8_t* outermost,
                        int64_t* leader) {
  std::vector<int64_t> until(threads, INT64_MIN), leads(threads, -1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t call = at[i];
    const int32_t mine = thread[call];
    if (leads[mine] < 0 || start[call] >= until[mine]) {
      leads[mine] = call;
      outermost[call] = 1;
    }
    leader[call] = leads[mine];
    if (end[call] > until[mine]) until[mine] = end[call];
  }
}

// What had ended last on each other lane when a span began, and the one before it on its own lane
// had not seen: edges (before, after), by after and before. `lanes`: spans lane by lane, of
// which `bounds` (count + 1) tells the first of each; `op`, `lane`: all spans in order of start,
// and the lane of each. Returns how many edges there are; writes `room` of them at most.
// No edge leads backwards: of spans without length at one moment, positions decide. Then what
// was before waits for no more than those before it, and what comes after it waits for it; those
// edges come last.
int64_t spanlite_observed(const int64_t* op, const int32_t* lane, int64_t n, const int64_t* lanes,
                          const int64_t* bounds, int64_t count, const int64_t* start,
                          const int64_t* end, int64_t room, int64_t* before, int64_t* after) {
  std::vector<int64_t> done(bounds, bounds + count);  // first that has not ended, by lane
  std::vector<int64_t> here(bounds, bounds + count);  // where each lane has come to
  std::vector<int64_t> seen(count * count, -1);       // by lane, of each other lane
  std::vector<int64_t> ended;
  std::vector<std::pair<int64_t, int64_t>> later;
  int64_t edges = 0;
  const auto add = [&](int64_t first, int64_t second) {
    if (edges < room) before[edges] = first, after[edges] = second;
    ++edges;
  };
  for (int64_t i = 0; i < n; ++i) {
    const int64_t now = op[i];
    const int32_t mine = lane[i];
    ++here[mine];
    ended.clear();
    for (int32_t other = 0; other < count; ++other) {
      int64_t& next = done[other];
      if (other == mine) continue;
      while (next < bounds[other + 1] && end[lanes[next]] <= start[now]) ++next;
      if (next == bounds[other] || seen[mine * count + other] == next) continue;
      seen[mine * count + other] = next;
      int64_t last = next - 1;
      if (lanes[last] > now) {
        int64_t following = here[mine];
        while (following < bounds[mine + 1] && lanes[following] < lanes[last]) ++following;
        if (following < bounds[mine + 1]) later.emplace_back(lanes[last], lanes[following]);
        while (last >= bounds[other] && lanes[last] > now) --last;
        if (last < bounds[other]) continue;
      }
      ended.push_back(lanes[last]);
      for (std::size_t at = ended.size() - 1; at > 0 && ended[at - 1] > ended[at]; --at) {
        std::swap(ended[at - 1], ended[at]);
      }
    }
    for (const int64_t one : ended) add(one, now);
  }
  for (const auto& [first, second] : later) add(first, second);
  return edges;
}

}  // extern "C"
