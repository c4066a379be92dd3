// The event loop of engine.py once more, for large recordings: the same steps in the same order,
// so the same times to the last bit (compiled without contraction). native.py compiles and calls it.
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace {

constexpr double kFull = 1.0 - 1e-9;
using Event = std::pair<double, int64_t>;
using Heap = std::priority_queue<Event, std::vector<Event>, std::greater<Event>>;

}  // namespace

extern "C" {

// Arrays as engine.Program has them; lists of lists as offsets and items. `begins`: nan is None.
struct SpanliteProgram {
    int64_t count, calls, segments, paces;
    const int64_t *segment;
    const double *after, *floor, *gap, *solo;
    const int64_t *engine;
    const double *room;
    int64_t *waiting_for;
    const int64_t *then_from, *then_items, *wakes_from, *wakes_items;
    const int64_t *call_segment;
    const double *call_after, *call_floor, *call_cost, *call_delay;
    int64_t *call_waits;
    const int64_t *call_next;
    double *begins;
    const int64_t *last_call, *by_plan;
    const double *pace;
    double *start, *end, *returned;  // results, beside `begins`
};
}

namespace {

struct Loop {
    SpanliteProgram &p;
    std::vector<std::vector<int64_t>> parked;
    Heap ready, running;
    std::deque<int64_t> full;
    int64_t next_of_plan = 0;

    explicit Loop(SpanliteProgram &program) : p(program), parked(program.segments) {}

    void launch(int64_t span, double now)
    {
        int64_t number = p.segment[span];
        double when = p.floor[span];
        if (number >= 0) {
            double begin = p.begins[number];
            if (std::isnan(begin)) {
                parked[number].push_back(span);
                return;
            }
            when = std::fmax(when, begin + p.after[span]);
        }
        ready.emplace(std::fmax(when, now + p.gap[span]), span);
    }

    void launch_all(const std::vector<int64_t> &spans, double now)
    {
        for (int64_t span : spans) {
            launch(span, now);
        }
    }

    // A segment begins; so may those behind calls that wait for nothing more.
    void begin(int64_t number, double begin, std::vector<int64_t> &freed)
    {
        while (number >= 0) {
            p.begins[number] = begin;
            freed.insert(freed.end(), parked[number].begin(), parked[number].end());
            parked[number].clear();
            int64_t call = p.last_call[number];
            if (call < 0 || p.call_waits[call] != 0) {
                return;
            }
            number = give_back(call, begin, -1.0, begin);
        }
    }

    // A call returns. Writes when, and returns the segment that begins then, -1 for none.
    int64_t give_back(int64_t call, double begin, double now, double &when)
    {
        double starts = std::fmax(begin + p.call_after[call], p.call_floor[call]);
        when = std::fmax(starts + p.call_cost[call], now + p.call_delay[call]);
        p.returned[call] = when;
        return p.call_next[call];
    }

    void wake(int64_t span, double now)
    {
        std::vector<int64_t> freed;
        for (int64_t at = p.wakes_from[span]; at < p.wakes_from[span + 1]; ++at) {
            int64_t call = p.wakes_items[at];
            --p.call_waits[call];
            double begin_then = p.begins[p.call_segment[call]];
            if (p.call_waits[call] == 0 && !std::isnan(begin_then)) {
                double when = 0;
                int64_t number = give_back(call, begin_then, now, when);
                begin(number, when, freed);
            }
        }
        launch_all(freed, now);
    }

    // Nothing can go on: the next span of the plan goes, whatever it waits for.
    void let_go(double now)
    {
        while (p.start[p.by_plan[next_of_plan]] >= 0) {
            ++next_of_plan;
        }
        int64_t span = p.by_plan[next_of_plan], number = p.segment[span];
        std::vector<int64_t> freed;
        bool parked_too = number >= 0 && std::isnan(p.begins[number]);
        if (parked_too) {
            begin(number, now, freed);
        }
        if (!parked_too || p.waiting_for[span] != 0) {
            p.waiting_for[span] = 0;
            freed.push_back(span);
        }
        launch_all(freed, now);
    }

    int64_t run();
};

int64_t Loop::run()
{
    int64_t count = p.count, kernels = 0, given_up = 0, alive = count, limit = p.paces - 1;
    double now = 0, virtual_now = 0, held = 0, slow = 1;
    double free_at[4] = {0, 0, 0, 0};
    auto pace_of = [&] { return std::fmax(p.pace[kernels < limit ? kernels : limit], held); };
    // As known at the outset: others begin through these.
    const std::vector<double> known(p.begins, p.begins + p.segments);
    std::vector<int64_t> freed;
    for (int64_t number = 0; number < p.segments; ++number) {
        if (!std::isnan(known[number])) {
            begin(number, known[number], freed);
        }
    }
    launch_all(freed, now);
    for (int64_t span = 0; span < count; ++span) {
        if (p.waiting_for[span] == 0) {
            launch(span, now);
        }
    }
    for (;;) {
        int64_t span;
        if (!running.empty() &&
            (ready.empty() ||
             now + (running.top().first - virtual_now) * slow <= ready.top().first)) {
            double target = running.top().first;
            now += (target - virtual_now) * slow;
            virtual_now = target;
            span = running.top().second;
            running.pop();
            --kernels;
            held = kernels ? held - p.room[span] : 0.0;
            slow = pace_of();
            if (!full.empty() && held < kFull) {
                ready.emplace(now, full.front());
                full.pop_front();
            }
        } else if (!ready.empty()) {
            double when = ready.top().first;
            span = ready.top().second;
            ready.pop();
            if (kernels) {
                virtual_now += (when - now) / slow;
            }
            now = when;
            if (span < count) {
                int64_t kind = p.engine[span];
                if (kind == 0) {
                    if (held >= kFull && kernels) {
                        full.push_back(span);
                        continue;
                    }
                    p.start[span] = now;
                    if (kernels || !full.empty() ||
                        (!ready.empty() && ready.top().first < now + p.solo[span])) {
                        ++kernels;
                        held += p.room[span];
                        slow = pace_of();
                        running.emplace(virtual_now + p.solo[span], span);
                        if (!full.empty() && held < kFull) {
                            ready.emplace(now, full.front());
                            full.pop_front();
                        }
                        continue;
                    }
                    now += p.solo[span];
                } else {
                    if (kind > 1) {
                        if (free_at[kind] > now) {
                            ready.emplace(free_at[kind], span);
                            continue;
                        }
                        free_at[kind] = now + p.solo[span];
                    }
                    p.start[span] = now;
                    ready.emplace(now + p.solo[span], span + count);
                    continue;
                }
            } else {
                span -= count;
            }
        } else if (alive) {
            ++given_up;
            let_go(now);
            continue;
        } else {
            break;
        }
        p.end[span] = now;
        --alive;
        for (int64_t at = p.then_from[span]; at < p.then_from[span + 1]; ++at) {
            int64_t other = p.then_items[at];
            if (--p.waiting_for[other] == 0) {
                launch(other, now);
            }
        }
        if (p.wakes_from[span] < p.wakes_from[span + 1]) {
            wake(span, now);
        }
    }
    return given_up;
}

}  // namespace

// Returns how many waits were given up.
extern "C" int64_t spanlite_sim_run(SpanliteProgram *program)
{
    return Loop(*program).run();
}
