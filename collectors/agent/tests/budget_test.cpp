// Spacing of windows and their times, without a process around them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "budget.h"
#include "check.h"
#include "detach_allowance.h"
#include "open_windows.h"

using namespace spanlite;

namespace {

// A server whose steps take `step_ns`, and `slower` times that inside windows. Returns the cost
// that really arose, in ppm, over ten minutes.
double Simulate(uint32_t allowed_ppm, uint64_t step_ns, double slower, uint64_t fixed_ns,
                uint64_t* reported_ppm) {
  Budget budget(allowed_ppm, 10, 1'000'000'000);
  uint64_t now = 1, extra = 0;
  while (now < 600'000'000'000ull) {
    for (int i = 0; i < 200; ++i, now += step_ns) budget.StepOutside(step_ns, true);
    if (!budget.Due(now)) continue;
    const auto inside = static_cast<uint64_t>(static_cast<double>(step_ns) * slower);
    for (uint32_t i = budget.WindowSteps(); i-- > 0; now += inside) {
      budget.StepInside(inside);
      extra += inside - step_ns;
    }
    now += fixed_ns;
    extra += fixed_ns;
    budget.WindowClosed(now, fixed_ns);
  }
  *reported_ppm = budget.CostPpm();
  return static_cast<double>(extra) / static_cast<double>(now) * 1e6;
}

void KeepsWithinBudget() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto allowed = static_cast<uint32_t>(1'000 + random() % 20'000);
    const uint64_t step_ns = 500'000 + random() % 10'000'000;
    const double slower = 1.0 + static_cast<double>(random() % 100) / 100;
    const uint64_t fixed_ns = random() % 20'000'000;
    uint64_t reported = 0;
    const double cost = Simulate(allowed, step_ns, slower, fixed_ns, &reported);
    CHECK(cost <= allowed * 1.05);
  }
}

void MeasuresWhatAttachingCosts() {
  Budget budget(10'000, 10, 1);
  for (int i = 0; i < 500; ++i) budget.StepOutside(1'000'000, false);
  CHECK(budget.AttachedCostPpm() == 0);  // not known yet
  for (int i = 0; i < 500; ++i) budget.StepOutside(1'050'000, true);
  CHECK(budget.AttachedCostPpm() > 49'000 && budget.AttachedCostPpm() < 51'000);
}

void ShortensWindowsThatCostTooMuch() {
  Budget budget(1, 16, 1'000'000'000);
  for (int i = 0; i < 200; ++i) budget.StepOutside(1'000'000, true);
  for (int i = 0; i < 16; ++i) budget.StepInside(2'000'000);
  budget.WindowClosed(1, 1'000'000);
  CHECK(budget.WindowSteps() == 8);
  CHECK(budget.CostNs() == 17'000'000 && budget.SpacingNs() == 600'000'000'000);
  for (int i = 0; i < 599; ++i) budget.StepOutside(1'000'000'000, true);
  CHECK(!budget.Due(2'000'000'000'000));  // idling earns nothing
  budget.StepOutside(2'000'000'000, true);
  CHECK(budget.Due(2'000'000'000'000));  // never rarer than ten minutes of work
  CHECK(!budget.Due(500'000'000));       // and never closer than asked
}

constexpr uint64_t kHourNs = 3'600'000'000'000;

// Windows as often as the allowance lets them, each minute at most, for `days`: how many detaches.
uint64_t DetachesIn(double mib_a_day, uint64_t days) {
  DetachAllowance allowance(mib_a_day);
  uint64_t detaches = 0;
  for (uint64_t now = 1; now < days * 24 * kHourNs; now += kHourNs / 60) {
    if (!allowance.Left(now)) continue;
    allowance.Take(now);
    ++detaches;
  }
  return detaches;
}

void DetachesTakeNoMoreMemoryThanAllowed() {
  // A day's worth at once, and one day's more each day.
  for (const uint64_t days : {1, 2, 30}) {
    const double mib = static_cast<double>(DetachesIn(65, days)) * DetachAllowance::kDetachMib;
    CHECK(mib <= 65.0 * static_cast<double>(days + 1));
    CHECK(mib >= 65.0 * static_cast<double>(days + 1) - 2);
  }
  CHECK(DetachesIn(0, 1) == 24 * 60);  // without a limit
  CHECK(DetachesIn(0.001, 1) <= 2);    // at least one in a day
}

void SlowStepsOverdrawTheAllowanceByADay() {
  DetachAllowance allowance(65);
  uint64_t detaches = 0;
  while (allowance.MayOverdraw(1)) {
    allowance.Take(1);
    ++detaches;
  }
  CHECK(detaches == 200);
  CHECK(!allowance.Left(1) && !allowance.Left(1 + 24 * kHourNs));
  CHECK(allowance.Left(1 + 25 * kHourNs));
  CHECK(allowance.SpacingNs() > 863e9 && allowance.SpacingNs() < 865e9);
}

// Of so many steps one lies in a window, over ten minutes; `longest` is the longest window's steps.
double StepsForOneInside(uint64_t step_ns, double slower, uint64_t* longest) {
  Budget budget(10'000, 0, 1'000'000'000);
  uint64_t now = 1, steps = 0, inside = 0;
  *longest = 0;
  while (now < 600'000'000'000ull) {
    for (int i = 0; i < 50; ++i, ++steps, now += step_ns) budget.StepOutside(step_ns, false);
    if (!budget.Due(now)) continue;
    *longest = std::max<uint64_t>(*longest, budget.WindowSteps());
    for (uint32_t i = budget.WindowSteps(); i-- > 0; ++steps, ++inside)
      budget.StepInside(static_cast<uint64_t>(static_cast<double>(step_ns) * slower));
    now += 17'000'000;
    budget.WindowClosed(now, 17'000'000);
  }
  CHECK(budget.CostPpm() < 10'000);
  return static_cast<double>(steps) / static_cast<double>(inside);
}

// Windows of short steps are longer, and the fewer steps lie in windows the more these slow them.
void SpreadsWindowsOverSteps() {
  uint64_t longest;
  const double slow = StepsForOneInside(500'000, 1.45, &longest);
  CHECK(slow > 850 && slow < 1'300 && longest >= 20 && longest <= 68);
  const double light = StepsForOneInside(8'000'000, 1.04, &longest);
  CHECK(light > 195 && light < 320 && longest == 10);
}

// A window before its time leaves what was missing to the next; one that was asked for nothing.
void KeepsWhatIsOwed() {
  Budget budget(10'000, 10, 1);
  for (int i = 0; i < 100; ++i) budget.StepOutside(10'000'000, false);
  const auto spacing = [&budget] {
    int steps = 0;
    for (; !budget.Due(1'000'000'000'000); ++steps) budget.StepOutside(10'000'000, false);
    return steps;
  };
  budget.WindowClosed(1, 20'000'000);  // 1.5 times 20 ms are 1 % of 300 steps
  CHECK(spacing() == 300);
  budget.WindowClosed(2, 20'000'000);
  budget.WindowClosed(3, 20'000'000);
  CHECK(spacing() == 600);
  budget.WindowClosed(4, 20'000'000);
  budget.WindowClosed(5, 500'000'000, true);
  CHECK(spacing() == 300);
}

// Windows before their time, as each step is too slow, end once they have cost a second too much.
void OverdrawsOnlySoFar() {
  Budget budget(10'000, 10, 1'000'000'000);
  for (int i = 0; i < 100; ++i) budget.StepOutside(10'000'000, false);
  uint64_t now = 1, early = 0;
  for (; budget.MayOverdraw() && early < 1'000; ++early)
    budget.WindowClosed(now += 100'000'000, 20'000'000);
  CHECK(early > 40 && early < 60);
  for (int i = 0; i < 1'000; ++i) budget.StepOutside(10'000'000, false);
  CHECK(budget.MayOverdraw());  // earned again
}

void PlacesRecordsByTime() {
  WindowTimes times;
  CHECK(times.At(100) == 0);
  for (uint32_t window = 1; window <= 200; ++window) {
    times.Open(window, window * 1000);
    CHECK(times.At(window * 1000 + 5'000'000) == window);  // still open
    times.Close(window * 1000 + 500);
  }
  CHECK(times.At(200'200) == 200 && times.At(199'500) == 199 && times.At(199'700) == 0);
  CHECK(times.At(1'200) == 0);  // long forgotten
}

}  // namespace

int main() {
  KeepsWithinBudget();
  MeasuresWhatAttachingCosts();
  ShortensWindowsThatCostTooMuch();
  SpreadsWindowsOverSteps();
  KeepsWhatIsOwed();
  OverdrawsOnlySoFar();
  DetachesTakeNoMoreMemoryThanAllowed();
  SlowStepsOverdrawTheAllowanceByADay();
  PlacesRecordsByTime();
  std::puts("ok");
}
