// make_room(list, count) takes memory before anything changes, so that the change itself cannot fail halfway.
#ifndef TENSORWRIGHT_RUNTIME_CORE_MAKE_ROOM_H_
#define TENSORWRIGHT_RUNTIME_CORE_MAKE_ROOM_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tensorwright {

// Takes the memory for `count` more elements: adding them then throws nothing. The capacity grows by
// doubling, as in push_back.
template <typename T>
void make_room(std::vector<T>& list, size_t count) {
  const size_t needed = list.size() + count;
  if (needed > list.capacity()) list.reserve(std::max(needed, 2 * list.capacity()));
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MAKE_ROOM_H_
