// Reads the keys of a hash table page by page, while it changes between two pages.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BUCKET_PAGES_H_
#define TENSORWRIGHT_RUNTIME_CORE_BUCKET_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace tensorwright {

// Where the next page begins.
struct BucketPlace {
  uint64_t buckets = 0;  // of the table when the last page was read
  uint64_t at = 0;       // the next bucket
};

// Calls `visit` with the keys of the next page: it ends with the bucket in which buckets and keys make
// `limit`. Returns whether the table is at its end. A key that is there from the first page to the last is on
// one at least; where the table has grown meanwhile, the pages begin again, and keys come twice.
template <typename Table, typename Visit>
bool visit_page(const Table& table, BucketPlace* place, size_t limit, const Visit& visit) {
  if (place->buckets != table.bucket_count()) *place = {table.bucket_count(), 0};
  for (size_t looked = 0; place->at < place->buckets; ++place->at, ++looked) {
    if (looked >= limit) return false;
    for (auto it = table.begin(place->at); it != table.end(place->at); ++it, ++looked) visit(it->first);
  }
  return true;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BUCKET_PAGES_H_
