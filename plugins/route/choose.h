// Chooses the largest of some numbers, for the operations that route.
#ifndef TENSORWRIGHT_PLUGINS_ROUTE_CHOOSE_H_
#define TENSORWRIGHT_PLUGINS_ROUTE_CHOOSE_H_

#include <cmath>
#include <cstdint>
#include <limits>

namespace tensorwright {

// A NaN counts as the largest number, so that it reaches the weights.
inline float sort_key(float number) {
  return std::isnan(number) ? std::numeric_limits<float>::infinity() : number;
}

// Writes the places of the k largest of `count` numbers to `index`, best first. Of equal ones the lowest
// place comes first.
inline void choose_largest(const float* numbers, int32_t count, int32_t k, int32_t* index) {
  int32_t chosen = 0;
  for (int32_t place = 0; place < count; ++place) {
    const float key = sort_key(numbers[place]);
    if (chosen == k && !(key > sort_key(numbers[index[k - 1]]))) continue;
    int32_t slot = chosen < k ? chosen++ : k - 1;
    for (; slot > 0 && key > sort_key(numbers[index[slot - 1]]); --slot) index[slot] = index[slot - 1];
    index[slot] = place;
  }
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_ROUTE_CHOOSE_H_
