#include "runtime/c_interface/sampling_json.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/c_interface/declarations.h"

namespace tensorwright {
namespace {

const JsonPlace kRequest = {"InvalidRequestError", "request"};
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// When a parameter may be given: a beam search draws nothing, and other requests have no beams.
enum class When { kAlways, kBeams, kDrawing };
using enum When;

// One function for each form of declarations.h: it reads a value into a member of Sampling.
void set_integer(const Json& value, const char* name, int32_t& member) {
  member = static_cast<int32_t>(read_integer(value, kRequest, name));
}

// 0 and -1 both mean no limit.
void set_limit(const Json& value, const char* name, int32_t& member) {
  member = std::max(0, static_cast<int32_t>(read_integer(value, kRequest, name, -1)));
}

void set_number(const Json& value, const char* name, double& member) {
  member = read_number(value, kRequest, name);
}

void set_flag(const Json& value, const char* name, bool& member) {
  member = read_flag(value, kRequest, name);
}

void set_optional_seconds(const Json& value, const char* name, double& member) {
  if (value.is_null()) {
    member = -1;
    return;
  }
  member = read_number(value, kRequest, name);
  if (member < 0)
    refuse(kRequest, std::string(name) + " must be a number of seconds, 0 or more, or null", shown(value),
           "use null for none");
}

void set_optional_count(const Json& value, const char* name, int32_t& member) {
  member = value.is_null() ? -1 : static_cast<int32_t>(read_integer(value, kRequest, name, 0));
}

void set_seed(const Json& value, const char* name, std::optional<uint64_t>& member) {
  member.reset();
  if (value.is_null()) return;
  if (!value.is_number_unsigned())
    refuse(kRequest, std::string(name) + " must be a whole number from 0 to 2**64 - 1, or null", shown(value),
           "use one in range");
  member = value.get<uint64_t>();
}

// Returns the number of characters of a text in UTF-8.
int64_t characters(const std::string& text) {
  return std::ranges::count_if(text,
                               [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

void set_salt(const Json& value, const char* name, std::string& member) {
  member.clear();
  if (value.is_null()) return;
  member = read_text(value, kRequest, name);
  if (member.empty() || characters(member) > kMaxSaltLength) {
    refuse(kRequest,
           std::string(name) + " must be a text of 1 to " + std::to_string(kMaxSaltLength) +
               " characters, or null",
           shown(value), "use null for none");
  }
}

void set_early_stopping(const Json& value, const char* name, EarlyStopping& member) {
  if (value.is_boolean()) {
    member = value.get<bool>() ? EarlyStopping::yes : EarlyStopping::no;
  } else if (value == "never") {
    member = EarlyStopping::never;
  } else {
    refuse(kRequest, std::string(name) + " must be true, false or \"never\"", shown(value),
           "use one of them");
  }
}

std::vector<int32_t> read_ids(const Json& value, const std::string& name, size_t most) {
  std::vector<int32_t> ids;
  for (const Json& id : read_list(value, kRequest, name, most, "token ids"))
    ids.push_back(static_cast<int32_t>(read_integer(id, kRequest, "a token id of " + name, 0)));
  return ids;
}

void set_token_ids(const Json& value, const char* name, TokenSet& member) {
  member = TokenSet(read_ids(value, name, kMaxStopTokenIds));
}

// JSON has no infinity, so the bias that forbids a token is the text "-inf".
void set_biases(const Json& value, const char* name, std::vector<std::pair<int32_t, double>>& member) {
  member.clear();
  if (value.is_null()) return;
  if (!value.is_object() || value.size() > static_cast<size_t>(kMaxLogitBiases)) {
    refuse(kRequest,
           std::string(name) + " must be an object of at most " + std::to_string(kMaxLogitBiases) +
               " token ids and numbers, or null",
           shown(value), "write {\"17\": -2.5}");
  }
  for (const auto& [key, bias] : value.items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0)
      refuse(kRequest, std::string("keys of ") + name + " must be token ids", shown(Json(key)),
             "write them as \"17\"");
    const bool forbids = bias == "-inf";
    member.emplace_back(token, forbids ? -std::numeric_limits<double>::infinity()
                                       : read_number(bias, kRequest, std::string("a number of ") + name));
  }
  std::ranges::sort(member);
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (const auto twice = std::ranges::adjacent_find(member, same); twice != member.end())
    refuse(kRequest, std::string(name) + " must have each token once",
           std::to_string(twice->first) + " twice", "leave one out");
}

void set_words(const Json& value, const char* name, BannedWords& member) {
  std::vector<std::vector<int32_t>> words;
  for (const Json& word : read_list(value, kRequest, name, kMaxBadWords, "lists of token ids")) {
    if (word.is_string())
      refuse(kRequest, std::string(name) + " must be lists of token ids, for this interface has no tokenizer",
             shown(word), "tokenize the text, with and without a space before it");
    words.push_back(read_ids(word, name, kMaxBadWordTokens));
    if (words.back().empty())
      refuse(kRequest, std::string(name) + " must have at least one token each", "none", "drop it");
  }
  member = BannedWords(std::move(words));
}

// A parameter that counts only in a beam search, or only in others, must be left out where it means nothing.
void check_when(When when, const char* name, const Json& value, const Json& standard, bool beams) {
  if (when == kAlways || value == standard) return;
  if (when == kBeams && !beams)
    refuse(kRequest, std::string(name) + " must be left out without a beam_width above 1", shown(value),
           "leave it out");
  const std::string given = name;
  const bool off = (given == "temperature" && value == 0) || (given == "top_k" && value == -1);
  if (when == kDrawing && beams && !off)
    refuse(kRequest, given + " must be left out with a beam_width above 1, which draws nothing", shown(value),
           "leave it out");
}

void refuse_unknown(const Json& params, const Json& known) {
  for (const auto& [name, value] : params.items()) {
    if (known.contains(name)) continue;
    if (const Named* why = find_named(kRefusedParams, name))
      refuse(kRequest, name + " must be left out of the C interface", shown(value), why->text);
    refuse(kRequest, "parameters must be those of SamplingParams", shown(Json(name)),
           "tw_facts() lists them all under sampling_params");
  }
}

}  // namespace

Json default_params() {
  static const Json params = [] {
    Json made = Json::object();
#define DEFAULT(name, member, form, when, standard) made[#name] = Json::parse(standard);
    TENSORWRIGHT_PARAMS(DEFAULT)
#undef DEFAULT
    made["max_tokens"] = Json::parse(kDefaultMaxTokens);
    made["dry_sequence_breakers"] = Json::parse(kDefaultDryBreakers);
    made["bad_words"] = Json::array();
    made["truncate_prompt_tokens"] = nullptr;
    return made;
  }();
  return params;
}

Json refused_params() {
  Json refused = Json::object();
  for (const Named& each : kRefusedParams) refused[each.name] = each.text;
  return refused;
}

ReadParams read_params(std::string_view text) {
  const Json given = parse_object(text, kRequest, "the parameters");
  const Json standard = default_params();
  refuse_unknown(given, standard);
  Json params = standard;
  params.update(given);
  ReadParams read;
  Sampling& sampling = read.sampling;
#define SET(name, member, form, when, standard) set_##form(params[#name], #name, sampling.member);
  TENSORWRIGHT_PARAMS(SET)
#undef SET
  const bool beams = sampling.beams();
#define CHECK(name, member, form, when, text) check_when(when, #name, params[#name], standard[#name], beams);
  TENSORWRIGHT_PARAMS(CHECK)
#undef CHECK
  set_words(params["bad_words"], "bad_words", sampling.bad_words);
  if (const Json& most = params["max_tokens"]; !most.is_null())
    read.max_tokens = static_cast<int32_t>(read_integer(most, kRequest, "max_tokens", 1, kMaxInt));
  if (const Json& last = params["truncate_prompt_tokens"]; !last.is_null())
    read.truncate_prompt =
        static_cast<int32_t>(read_integer(last, kRequest, "truncate_prompt_tokens", 1, kMaxInt));
  read_list(params["dry_sequence_breakers"], kRequest, "dry_sequence_breakers", kMaxBadWords, "texts");
  const bool looks_back = sampling.dry_multiplier != 0 && sampling.dry_penalty_last_n != 0;
  if (const Json& breakers = params["dry_sequence_breakers"]; looks_back && !breakers.empty())
    refuse(kRequest, "dry_sequence_breakers must be [], for this interface has no tokenizer", shown(breakers),
           "pass [] with dry_multiplier");
  return read;
}

}  // namespace tensorwright
