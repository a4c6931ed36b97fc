#include "runtime/c_interface/open_options.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
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

std::string read_choice(const Json& value, const char* name, const char* choices) {
  const std::string all = std::string("|") + choices + "|";
  if (value.is_string() && !value.get_ref<const std::string&>().empty() &&
      all.find("|" + value.get<std::string>() + "|") != std::string::npos)
    return value.get<std::string>();
  std::string listed = choices;
  for (size_t at; (at = listed.find('|')) != std::string::npos;) listed.replace(at, 1, ", ");
  refuse(kOption, std::string(name) + " must be one of " + listed, shown(value), "choose one of them");
}

template <typename Value>
Json json_of(const Value& value) {
  return value;
}

template <typename Value>
Json json_of(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Json options_json(const OpenOptions& options) {
  Json made = Json::object();
#define PUT(name, kind, form, standard, choices) made[#name] = json_of(options.name);
  TENSORWRIGHT_OPTIONS(PUT)
#undef PUT
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
    const auto why =
        std::ranges::find_if(kRefusedOptions, [&](const Named& each) { return name == each.name; });
    if (why != std::end(kRefusedOptions))
      refuse(kOption, name + " must be left out of the C interface", shown(value), why->text);
    refuse(kOption, "options must be keywords of LLM that this interface has", shown(Json(name)),
           "tw_facts() lists them all under options");
  }
  // null is the default of an option whose choice is left open, and of no other.
#define READ(name, kind, form, standard, choices)                                    \
  if (const auto value = given.find(#name); value != given.end())                    \
    if (!value->is_null() || !known[#name].is_null()) options.name = read_##form(*value, #name, choices);
  TENSORWRIGHT_OPTIONS(READ)
#undef READ
  return options;
}

}  // namespace tensorwright
