#include "config.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <type_traits>

#include <unistd.h>

namespace spanlite {
namespace {

void Complain(const char* name, const char* value, const char* expected) {
  std::fprintf(stderr, "spanlite agent: %s='%s' is not %s; keeping the default\n", name, value,
               expected);
}

constexpr char kPrefix[] = "SPANLITE_AGENT_";

// The names that were asked for, so that another with our prefix is told as misspelt.
std::vector<std::string>* g_known = nullptr;

// A variable's value; null where it is absent or empty.
const char* TextOf(const char* name) {
  g_known->push_back(name);
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

void ReadText(const char* name, std::string* target) {
  if (const char* text = TextOf(name)) *target = text;
}

// A non-negative number, scaled; keeps `target` where the variable is absent or unreadable.
template <typename Number>
void ReadNumber(const char* name, Number* target, double scale = 1.0) {
  const char* text = TextOf(name);
  if (text == nullptr) return;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= 0) || value * scale > 1e18) {
    Complain(name, text, "a number of 0 or more");
    return;
  }
  const double most = static_cast<double>(std::numeric_limits<Number>::max());
  const double rounding = std::is_integral_v<Number> ? 0.5 : 0;
  *target = static_cast<Number>(std::min(value * scale + rounding, most));
}

template <typename Value, size_t N>
void ReadChoice(const char* name, const char* const (&words)[N], const Value (&values)[N],
                const char* expected, Value* target) {
  const char* text = TextOf(name);
  if (text == nullptr) return;
  for (size_t i = 0; i < N; ++i) {
    if (std::strcmp(text, words[i]) == 0) {
      *target = values[i];
      return;
    }
  }
  Complain(name, text, expected);
}

void ReadFlag(const char* name, bool* target) {
  ReadChoice<bool>(name, {"1", "true", "yes", "on", "0", "false", "no", "off"},
                   {true, true, true, true, false, false, false, false},
                   "1 or 0 (true or false, yes or no, on or off)", target);
}

std::vector<std::string> Words(const char* text) {
  std::vector<std::string> words;
  std::istringstream list(text);
  for (std::string word; std::getline(list, word, ',');)
    if (const size_t begin = word.find_first_not_of(' '); begin != std::string::npos)
      words.push_back(word.substr(begin));  // a blank at the end belongs to a prefix
  return words;
}

// A list of words, each switching its flag on and all others off.
void ReadActivities(const char* name, Config* config) {
  const char* text = TextOf(name);
  if (text == nullptr) return;
  Config read = *config;
  read.sync = read.overhead = read.external = read.copies = false;
  for (std::string word : Words(text)) {
    word.erase(word.find_last_not_of(' ') + 1);
    if (word == "sync") read.sync = true;
    else if (word == "overhead") read.overhead = true;
    else if (word == "external") read.external = true;
    else if (word == "copies") read.copies = true;
    else if (word != "none")
      return Complain(name, text, "a list of sync, overhead, external, copies, or none");
  }
  *config = read;
}

void ReadPrefixes(const char* name, std::vector<std::string>* target) {
  const char* text = TextOf(name);
  if (text == nullptr) return;
  if (const std::vector<std::string> words = Words(text); !words.empty()) *target = words;
  else Complain(name, text, "a list of prefixes, separated by commas");
}

// A misspelt name would otherwise leave its default in place without a word. Kubernetes sets names
// with our prefix itself where a service is called spanlite-agent.
void TellUnknown(const std::vector<std::string>& known) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (name.compare(0, sizeof kPrefix - 1, kPrefix) != 0) continue;
    const std::string rest = name.substr(sizeof kPrefix - 1);
    const bool service = rest.rfind("SERVICE_", 0) == 0 || rest.rfind("PORT", 0) == 0;
    if (service || std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::fprintf(stderr, "spanlite agent: %s is no setting of the agent and changes nothing\n",
                 name.c_str());
  }
}

}  // namespace

Config Config::FromEnvironment() {
  Config config;
  std::vector<std::string> known;
  g_known = &known;
  ReadText("SPANLITE_AGENT_DIR", &config.directory);
  ReadText("SPANLITE_AGENT_CUPTI", &config.cupti_library);
  ReadChoice<Level>("SPANLITE_AGENT_LEVEL", {"off", "ranges", "windows", "continuous"},
                    {Level::kOff, Level::kRanges, Level::kWindows, Level::kContinuous},
                    "off, ranges, windows or continuous", &config.level);
  ReadChoice<Detach>("SPANLITE_AGENT_DETACH", {"never", "proven", "held"},
                     {Detach::kNever, Detach::kWhenProven, Detach::kWhenHeld},
                     "never, proven or held", &config.detach);
  ReadNumber("SPANLITE_AGENT_RING_BYTES", &config.ring_bytes);
  ReadNumber("SPANLITE_AGENT_BUDGET_PCT", &config.budget_ppm, 10'000);
  ReadNumber("SPANLITE_AGENT_WINDOW_STEPS", &config.window_steps);
  ReadNumber("SPANLITE_AGENT_WINDOW_SECONDS", &config.window_every_ns, 1e9);
  ReadNumber("SPANLITE_AGENT_STEP_SLO_MS", &config.step_slo_ns, 1e6);
  ReadNumber("SPANLITE_AGENT_DETACH_MIB_PER_DAY", &config.detach_mib_a_day);
  ReadNumber("SPANLITE_AGENT_RENEW_KERNELS", &config.renew_kernels);
  ReadNumber("SPANLITE_AGENT_HOLD_MS", &config.hold_ns, 1e6);
  ReadNumber("SPANLITE_AGENT_LEARN_SECONDS", &config.learn_ns, 1e9);
  ReadNumber("SPANLITE_AGENT_LEARN_STEPS", &config.learn_steps);
  ReadNumber("SPANLITE_AGENT_BUFFER_BYTES", &config.buffer_bytes);
  ReadNumber("SPANLITE_AGENT_MAX_BUFFERS", &config.max_buffers);
  ReadFlag("SPANLITE_AGENT_GATE", &config.gate);
  ReadFlag("SPANLITE_AGENT_SHARED_BUFFERS", &config.shared_buffers);
  ReadFlag("SPANLITE_AGENT_API_CALLS", &config.api_calls);
  ReadActivities("SPANLITE_AGENT_ACTIVITIES", &config);
  ReadFlag("SPANLITE_AGENT_GRAPH_TRACE", &config.graph_trace);
  ReadFlag("SPANLITE_AGENT_HW_TRACE", &config.hw_trace);
  // Below these CUPTI could not store one record, or not go on while we parse.
  config.buffer_bytes = std::max<uint64_t>(config.buffer_bytes, 64 * 1024);
  config.max_buffers = std::max(config.max_buffers, 2u);
  ReadPrefixes("SPANLITE_AGENT_STEP_RANGES", &config.step_ranges);
  g_known = nullptr;
  TellUnknown(known);
  return config;
}

}  // namespace spanlite
