// Told about engine steps, on the application's own thread, at their boundaries.
#pragma once

#include <cstdint>

namespace spanlite {

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void StepBegins(uint32_t thread_id) = 0;
  // `name` is the interned name of the step's range.
  virtual void StepEnds(uint32_t thread_id, uint32_t name, uint64_t start_ns, uint64_t end_ns) = 0;
};

}  // namespace spanlite
