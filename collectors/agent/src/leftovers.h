// Rings of dead processes that no daemon has come for.
#pragma once

#include <cstddef>
#include <string>

namespace spanlite {

// Deletes all but the newest `keep` of them: each holds host memory, and where no daemon runs
// nobody else would.
void RemoveOldRings(const std::string& folder, size_t keep);

}  // namespace spanlite
