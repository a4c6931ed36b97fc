#include "runtime/c_interface/json_values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "runtime/core/base/error.h"

namespace tensorwright {
namespace {

constexpr size_t kShownCharacters = 100, kShownElements = 8;

// What the library says of a text, without its own number in brackets.
std::string words_of(const Json::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

// Cuts a text to what an error shows of it, between two characters of UTF-8.
std::string cut(std::string text) {
  if (text.size() <= kShownCharacters) return text;
  size_t end = kShownCharacters;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text + "...";
}

bool has_large_part(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size() > 4 * kShownCharacters;
  if (!value.is_structured()) return false;
  if (value.size() > kShownElements) return true;
  for (const Json& part : value)
    if (has_large_part(part)) return true;
  return false;
}

}  // namespace

void refuse(const JsonPlace& place, const std::string& must, const std::string& came,
            const std::string& remedy) {
  throw Error(place.type, "[" + place.scope + "] " + must + ", got " + came + "; " + remedy);
}

Json parse_object(std::string_view text, const JsonPlace& place, const std::string& what) {
  if (text.size() > kMaxJsonBytes) {
    refuse(place, what + " must have at most " + std::to_string(kMaxJsonBytes) + " bytes",
           std::to_string(text.size()), "shorten it");
  }
  std::vector<std::set<std::string>> keys;  // of the objects around the place that is read
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) {
          refuse(place, what + " must not be nested deeper than " + std::to_string(kMaxJsonDepth), "more",
                 "flatten it");
        }
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second)
          refuse(place, what + " must have each key once", shown(parsed) + " twice", "leave one out");
        break;
      case Json::parse_event_t::array_end:
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  Json value;
  try {
    value = Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    refuse(place, what + " must be JSON", "a text that is none (" + cut(words_of(error)) + ")", "correct it");
  }
  if (!value.is_object())
    refuse(place, what + " must be an object of JSON", shown(value), "write {\"name\": value}");
  return value;
}

std::string valid_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

const Named* find_named(std::span<const Named> table, std::string_view name) {
  for (const Named& each : table)
    if (name == each.name) return &each;
  return nullptr;
}

std::string shown(const Json& value) {
  if (value.is_string())
    return cut(
        Json(cut(value.get_ref<const std::string&>())).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (has_large_part(value))
    return std::string(value.is_object() ? "an object" : "an array") + " of " + std::to_string(value.size());
  return cut(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

int64_t read_integer(const Json& value, const JsonPlace& place, const std::string& name, int64_t low,
                     int64_t high) {
  const bool is_positive = value.is_number_unsigned();
  if (value.is_number_integer() &&
      (!is_positive || value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()})) {
    const auto number = value.get<int64_t>();
    if (number >= low && number <= high) return number;
  }
  refuse(place, name + " must be a whole number from " + std::to_string(low) + " to " + std::to_string(high),
         shown(value), "choose one in this range");
}

double read_number(const Json& value, const JsonPlace& place, const std::string& name) {
  if (!value.is_number()) refuse(place, name + " must be a number", shown(value), "write a number");
  return value.get<double>();
}

bool read_flag(const Json& value, const JsonPlace& place, const std::string& name) {
  if (!value.is_boolean())
    refuse(place, name + " must be true or false", shown(value), "write one of them without quotes");
  return value.get<bool>();
}

const std::string& read_text(const Json& value, const JsonPlace& place, const std::string& name) {
  if (!value.is_string()) refuse(place, name + " must be a text", shown(value), "write it in quotes");
  return value.get_ref<const std::string&>();
}

// Returns a text without the white space around it.
static std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char letter) { return std::isspace(static_cast<unsigned char>(letter)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

double read_quantity(const Json& value, const JsonPlace& place, const std::string& name,
                     std::span<const Unit> units, bool small_letters, const char* example) {
  double quantity = 0;
  if (value.is_number()) {
    quantity = value.get<double>();
  } else if (value.is_string()) {
    std::string_view text = trimmed(value.get_ref<const std::string&>());
    double number = 0;
    const auto [rest, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    const std::string_view digits(text.data(), static_cast<size_t>(rest - text.data()));
    std::string unit(trimmed(text.substr(digits.size())));
    if (small_letters)
      for (char& letter : unit) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    const auto found = std::ranges::find_if(units, [&](const Unit& each) { return unit == each.name; });
    // Of a size a point stands between digits; of a time they may be missing on one side of it.
    const bool open_point = digits.starts_with('.') || digits.ends_with('.');
    if (error == std::errc() && found != units.end() && !(small_letters && open_point))
      quantity = number * found->factor;
  }
  if (quantity > 0 && std::isfinite(quantity)) return quantity;
  refuse(place, name + " must be a positive number or a text like \"" + example + "\"", shown(value),
         "choose such a one");
}

const Json& read_list(const Json& value, const JsonPlace& place, const std::string& name, size_t most,
                      const char* elements) {
  if (!value.is_array() || value.size() > most) {
    refuse(place, name + " must be an array of at most " + std::to_string(most) + " " + elements,
           shown(value), "write [...]");
  }
  return value;
}

}  // namespace tensorwright
