#include "runtime/c_interface/open_options.h"

#include <cstddef>
#include <string>

namespace tensorwright {
namespace {

const JsonPlace kOption = {"InvalidOptionError", "engine"};

// One function for each form of declarations.h: it reads a value.
int64_t read_size(const Json& value, const char* name, const char*) {
  const double bytes = read_quantity(value, kOption, name, kSizeUnits, true, "512MiB");
  constexpr double kMost = 9e18;
  if (bytes < 1 || bytes > kMost || (value.is_number() && !value.is_number_integer()))
    refuse(kOption, std::string(name) + " must be a positive number of bytes or a text like \"512MiB\"",
           shown(value), "choose such a one");
  return value.is_number() ? value.get<int64_t>() : static_cast<int64_t>(bytes);
}

double read_duration(const Json& value, const char* name, const char*) {
  return read_quantity(value, kOption, name, kDurationUnits, false, "50ms");
}

int32_t read_count(const Json& value, const char* name, const char*) {
  return static_cast<int32_t>(read_integer(value, kOption, name, 0));
}

bool read_flag(const Json& value, const char* name, const char*) { return read_flag(value, kOption, name); }

// Whether a name stands in a list "a|b".
bool lists_name(const std::string& list, const std::string& name) {
  return !name.empty() && ("|" + list + "|").find("|" + name + "|") != std::string::npos;
}

std::string read_choice(const Json& value, const char* name, const char* choices) {
  if (value.is_string() && lists_name(choices, value.get<std::string>())) return value.get<std::string>();
  std::string listed = choices;
  for (size_t at; (at = listed.find('|')) != std::string::npos;) listed.replace(at, 1, ", ");
  refuse(kOption, std::string(name) + " must be one of " + listed, shown(value), "choose one of them");
}

// "ngram", or {"method": "ngram", "tokens": 4}; null or "none" for nothing.
std::optional<ReadSpeculation> read_speculation(const Json& value) {
  if (value.is_null() || value == "none") return std::nullopt;
  const Json given = value.is_object() ? value : Json{{"method", value}};
  ReadSpeculation read;
  read.method = read_choice(given.value("method", Json()), "the method of speculative", kProposers);
  for (const auto& [name, number] : given.items()) {
    bool known = name == "method";
#define READ_NUMBER(field, standard, low, high, methods)                                              \
  if (name == #field && lists_name(methods, read.method)) {                                           \
    known = true;                                                                                     \
    const bool as_many_as_pay = name == "tokens" && number == "auto";                                 \
    read.field =                                                                                      \
        as_many_as_pay                                                                                \
            ? 0                                                                                       \
            : static_cast<int32_t>(read_integer(number, kOption, "speculative: " + name, low, high)); \
  }
    TENSORWRIGHT_SPECULATION(READ_NUMBER)
#undef READ_NUMBER
    if (!known)
      refuse(kOption, "speculative must have what method " + read.method + " takes", shown(Json(name)),
             "leave it out");
  }
  return read;
}

Json json_of(const ReadSpeculation& speculation) {
  Json made = {{"method", speculation.method}};
#define PUT_NUMBER(field, standard, low, high, methods) \
  if (lists_name(methods, speculation.method)) made[#field] = speculation.field;
  TENSORWRIGHT_SPECULATION(PUT_NUMBER)
#undef PUT_NUMBER
  return made;
}

template <typename Value>
Json json_of(const Value& value) {
  return value;
}

template <typename Value>
Json json_of(const std::optional<Value>& value) {
  return value ? json_of(*value) : Json();
}

}  // namespace

Json options_json(const OpenOptions& options) {
  Json made = Json::object();
#define PUT(name, kind, form, standard, choices) made[#name] = json_of(options.name);
  TENSORWRIGHT_OPTIONS(PUT)
#undef PUT
  made["speculative"] = json_of(options.speculative);
  return made;
}

Json refused_options() {
  Json refused = Json::object();
  for (const Named& each : kRefusedOptions) refused[each.name] = each.text;
  return refused;
}

OpenOptions read_options(std::string_view text) {
  const Json given = parse_object(text, kOption, "the options");
  OpenOptions options;
  const Json known = options_json(options);
  for (const auto& [name, value] : given.items()) {
    if (known.contains(name)) continue;
    if (const Named* why = find_named(kRefusedOptions, name))
      refuse(kOption, name + " must be left out of the C interface", shown(value), why->text);
    refuse(kOption, "options must be keywords of LLM that this interface has", shown(Json(name)),
           "tw_facts() lists them all under options");
  }
  // null is the default of an option whose choice is left open, and of no other.
#define READ(name, kind, form, standard, choices)                 \
  if (const auto value = given.find(#name); value != given.end()) \
    if (!value->is_null() || !known[#name].is_null()) options.name = read_##form(*value, #name, choices);
  TENSORWRIGHT_OPTIONS(READ)
#undef READ
  if (const auto value = given.find("speculative"); value != given.end())
    options.speculative = read_speculation(*value);
  return options;
}

}  // namespace tensorwright
