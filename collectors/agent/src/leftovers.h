// Rings of dead processes that no daemon has come for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace spanlite {

// Deletes all but the newest `keep` of them: each holds host memory, and where no daemon runs
// nobody else would. One that a daemon reads stays. Returns how many records were in them, unread.
uint64_t RemoveOldRings(const std::string& folder, size_t keep);

}  // namespace spanlite
