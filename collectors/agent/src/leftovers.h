// Rings of dead processes that no daemon has come for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ring_layout.h"

namespace spanlite {

// Deletes all but the newest `keep` of them: each holds host memory, and where no daemon runs
// nobody else would. One that a daemon reads stays. Returns what is lost with them, by `Drop`: the
// records in them that nobody read, and the drops that their own agents counted and nobody told.
using Losses = std::array<uint64_t, static_cast<size_t>(Drop::kCount)>;
Losses RemoveOldRings(const std::string& folder, size_t keep);

}  // namespace spanlite
