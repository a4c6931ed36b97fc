// make_room(list, count): what takes memory is taken before anything changes, so that what changes then
// cannot fail halfway.
#ifndef TENSORWRIGHT_RUNTIME_CORE_MAKE_ROOM_H_
#define TENSORWRIGHT_RUNTIME_CORE_MAKE_ROOM_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tensorwright {

// The next `count` elements that are added throw nothing. Grows by doubling, as push_back does.
template <typename T>
void make_room(std::vector<T>& list, size_t count) {
  const size_t needed = list.size() + count;
  if (needed > list.capacity()) list.reserve(std::max(needed, 2 * list.capacity()));
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MAKE_ROOM_H_
