#include "runtime/bindings/cache_feed.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/engine/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

namespace {

std::string hex_of(const ArchiveKey& key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (size_t i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[key.high >> (4 * i) & 15];
    text[31 - i] = kDigits[key.low >> (4 * i) & 15];
  }
  return text;
}

nb::object name_of(const std::optional<ArchiveKey>& key) {
  return key ? nb::cast(hex_of(*key)) : nb::object(nb::none());
}

CacheFeed::EventList to_list(const std::vector<CacheEvent>& events) {
  CacheFeed::EventList list;
  for (const CacheEvent& event : events) {
    nb::object tokens = nb::none();
    if (!event.tokens.empty()) {
      nb::list ids;
      for (int32_t token : event.tokens) ids.append(token);
      tokens = ids;
    }
    list.append(nb::make_tuple(event.number, event.stored, static_cast<int>(event.tier), event.group,
                               hex_of(event.block), name_of(event.parent), name_of(event.origin.salt),
                               name_of(event.origin.adapter), tokens));
  }
  return list;
}

}  // namespace

void CacheFeed::visit(const std::function<void(Engine&)>& work) const {
  nb::gil_scoped_release release;
  const std::shared_ptr<RunningEngine> running = engine_.lock();
  if (!running || !running->is_here())
    throw Error("EngineStoppedError",
                "[engine] events of a prefix cache need a running engine of this process, got none");
  work(*running->engine);
}

uint64_t CacheFeed::epoch() const {
  uint64_t epoch = 0;
  visit([&](Engine& engine) { epoch = engine.cache_log().epoch(); });
  return epoch;
}

int64_t CacheFeed::begin() const {
  int64_t number = 0;
  visit([&](Engine& engine) { number = engine.cache_log().begin(); });
  return number;
}

std::tuple<CacheFeed::EventList, int64_t, int64_t> CacheFeed::read(int64_t after, size_t limit,
                                                                   double timeout_s) const {
  CacheLog::News news;
  visit([&](Engine& engine) { news = engine.cache_log().read(after, limit, timeout_s); });
  return {to_list(news.events), news.next, news.lost};
}

std::tuple<CacheFeed::EventList, CacheFeed::Place> CacheFeed::content(const Place& place, size_t limit,
                                                                      double timeout_s) const {
  const auto& [stage, number, buckets, bucket] = place;
  ContentPlace at{stage, number, {buckets, bucket}};
  std::vector<CacheEvent> page;
  visit([&](Engine& engine) { page = engine.read_content(&at, limit, timeout_s); });
  return {to_list(page), Place{at.stage, at.number, at.buckets.buckets, at.buckets.at}};
}

std::string CacheFeed::salt_name(const std::string& salt) const {
  ArchiveKey name;
  visit([&](Engine& engine) { name = tensorwright::salt_name(engine.block_names(), salt); });
  return hex_of(name);
}

std::string CacheFeed::adapter_name(const std::string& key) const {
  ArchiveKey name;
  visit([&](Engine& engine) { name = tensorwright::adapter_name(engine.block_names(), key); });
  return hex_of(name);
}

void bind_cache_feed(nb::module_& m) {
  nb::class_<CacheFeed>(
      m, "CacheFeed",
      "The events of an engine's prefix cache, and its content. An event is a tuple: number, "
      "stored, tier (0 KV cache, 1 memory, 2 disk), group, block, parent, salt, adapter, token "
      "ids; names are 32 hexadecimal digits, and None stands for what there is not.")
      .def_prop_ro("epoch", &CacheFeed::epoch, "What the numbers of this engine's events belong to.")
      .def("begin", &CacheFeed::begin, "The number of the last event; those behind it are kept from now on.")
      .def("read", &CacheFeed::read, "after"_a, "limit"_a, "timeout_s"_a,
           "(events, next, lost): at most limit events behind number after, for the first of which it waits, "
           "and "
           "the number to go on behind. If some of them are gone, none are returned, lost says how many "
           "there were, "
           "and the content is to be read again.")
      .def("content", &CacheFeed::content, "place"_a, "limit"_a, "timeout_s"_a,
           "(events, place): the next page of what is stored, and where the one after it begins: (0, 0, 0, "
           "0) at "
           "first, stage 4 at the end.")
      .def("salt_name", &CacheFeed::salt_name, "salt"_a, "What events call a cache_salt.")
      .def("adapter_name", &CacheFeed::adapter_name, "key"_a, "What events call an adapter with this key.");
}

}  // namespace tensorwright
