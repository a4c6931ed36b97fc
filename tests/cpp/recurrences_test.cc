// Every kernel of a recurrence that this processor has, against the scalar one, on random numbers: what it
// writes, and the state that it leaves.
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "plugins/causal_conv/kernels.h"
#include "plugins/common/dispatch.h"
#include "plugins/delta_rule/kernels.h"
#include "plugins/rg_lru/kernels.h"
#include "plugins/selective_scan/kernels.h"
#include "plugins/state_space_scan/kernels.h"
#include "tests/cpp/check.h"
#include "tests/cpp/normal_numbers.h"

using namespace tensorwright;
using tw_test::normal;

namespace {

constexpr int kTokens = 35;  // a turn of state_space_scan and three more

std::vector<float> numbers(int64_t rows, int64_t columns, unsigned seed) {
  return normal(static_cast<size_t>(rows * columns), seed);
}

// What a kernel writes: y, as bytes, and the state.
struct Written {
  std::vector<char> y;
  std::vector<float> state;
  bool operator==(const Written& other) const {
    return y == other.y && std::memcmp(state.data(), other.state.data(), state.size() * sizeof(float)) == 0;
  }
};

// Runs every kernel of a table for both types of y, from a fresh state and from one that there is, and
// compares. args: all but y, y_dtype, state and fresh. y_bytes: of y in float32. means(i): whether number i
// of the state means anything; the others are not compared.
template <typename Fn, typename Args>
void expect_same(
    std::span<const KernelEntry<Fn>> table, Args args, size_t y_bytes, size_t state_size,
    const std::function<bool(size_t)>& means = [](size_t) { return true; }) {
  for (int y_dtype : {TW_F32, TW_BF16}) {
    for (int fresh : {0, 1}) {
      args.y_dtype = y_dtype, args.fresh = fresh;
      const auto run = [&](Fn fn) {
        Written written{std::vector<char>(y_bytes / 4 * tw_dtype_bytes(y_dtype), '\x7f'),
                        normal(state_size, 40)};
        args.y = written.y.data(), args.state = written.state.data();
        fn(&args);
        for (size_t i = 0; i < state_size; ++i) {
          if (!means(i)) written.state[i] = 0;
        }
        return written;
      };
      const Written expected = run(table.back().fn);
      for (const auto& entry : table) {
        if (!refusal(entry.isa, entry.extra, kEveryIsa).empty()) continue;
        if (!(run(entry.fn) == expected))
          tw_test::fail(entry.name, 0, "does not give the bits of the reference");
      }
    }
  }
}

constexpr int kWidths[] = {1, 7, 8, 9, 15, 16, 17, 33, 40};

}  // namespace

TW_TEST(causal_conv) {
  for (int channels : kWidths) {
    for (int width : {1, 2, 4}) {
      const std::vector<float> x = numbers(kTokens, channels, 1), w = numbers(width, channels, 2),
                               bias = numbers(1, channels, 3);
      tw_causal_conv_args a = {};
      a.tokens = kTokens, a.width = width, a.channels = channels, a.end = channels;
      a.activation = width % 2 ? TW_CONV_NONE : TW_CONV_SILU;
      a.x = x.data(), a.x_stride = channels, a.w = w.data(), a.bias = width == 2 ? nullptr : bias.data();
      a.y_stride = channels;
      expect_same(causal_conv_kernels(), a, x.size() * 4, static_cast<size_t>(channels) * width);
    }
  }
}

TW_TEST(rg_lru) {
  for (int channels : kWidths) {
    const std::vector<float> x = numbers(kTokens, channels, 4), input = numbers(kTokens, channels, 5),
                             decay = numbers(kTokens, channels, 6), biases = numbers(2, channels, 7);
    std::vector<float> rate = numbers(1, channels, 8);
    for (float& r : rate) r = -std::fabs(r);
    tw_rg_lru_args a = {};
    a.tokens = kTokens, a.end = channels;
    a.x = x.data(), a.input = input.data(), a.decay = decay.data();
    a.x_stride = a.input_stride = a.decay_stride = a.y_stride = channels;
    a.rate = rate.data(), a.input_bias = biases.data(), a.decay_bias = biases.data() + channels;
    expect_same(rg_lru_kernels(), a, x.size() * 4, static_cast<size_t>(channels));
  }
}

TW_TEST(selective_scan) {
  for (int channels : kWidths) {
    for (int states : {1, 5, 16}) {
      const int panels = (channels + TW_LANES - 1) / TW_LANES;
      const std::vector<float> x = numbers(kTokens, channels, 9), dt = numbers(kTokens, channels, 10),
                               b = numbers(kTokens, states, 11), c = numbers(kTokens, states, 12),
                               d = numbers(1, channels, 13), bias = numbers(1, channels, 14);
      std::vector<float> decays = numbers(panels * TW_LANES, states, 15);
      for (float& decay : decays) decay = -std::fabs(decay);
      tw_selective_scan_args a = {};
      a.tokens = kTokens, a.channels = channels, a.states = states, a.end = channels;
      a.x = x.data(), a.dt = dt.data(), a.b = b.data(), a.c = c.data();
      a.x_stride = a.dt_stride = a.y_stride = channels, a.b_stride = a.c_stride = states;
      a.a = decays.data(), a.d = d.data(), a.dt_bias = bias.data();
      const auto panel = static_cast<size_t>(states * TW_LANES);
      expect_same(selective_scan_kernels(), a, x.size() * 4, decays.size(), [=](size_t i) {
        return i / panel * TW_LANES + i % TW_LANES < static_cast<size_t>(channels);
      });
    }
  }
}

TW_TEST(state_space_scan) {
  for (int width : kWidths) {
    for (int states : {1, 5, 16, 18}) {
      const int stride = width + 2 * states;
      const std::vector<float> x = numbers(kTokens, stride, 16), dt = numbers(kTokens, 1, 17);
      tw_state_space_scan_args a = {};
      a.tokens = kTokens, a.width = width, a.states = states;
      a.a = -0.7f, a.d = 0.3f, a.dt_bias = 0.1f, a.dt_min = 0.01f, a.dt_max = 2.0f;
      a.x = x.data(), a.b = x.data() + width, a.c = x.data() + width + states, a.x_stride = stride;
      a.dt = dt.data(), a.dt_stride = 1, a.y_begin = 1, a.y_stride = width;
      expect_same(state_space_scan_kernels(), a, static_cast<size_t>(kTokens * width + 1) * 4,
                  static_cast<size_t>(states) * static_cast<size_t>(width));
    }
  }
}

TW_TEST(delta_rule) {
  for (int width : kWidths) {
    for (int keys : {1, 8, 17}) {
      for (int decays : {1, keys}) {
        const int stride = 2 * keys + width;
        const std::vector<float> q = numbers(kTokens, stride, 18), dt = numbers(kTokens, decays, 19),
                                 beta = numbers(kTokens, 1, 20);
        tw_delta_rule_args a = {};
        a.tokens = kTokens, a.keys = keys, a.width = width, a.decays = decays;
        a.a = -0.5f, a.beta_scale = 1.0f;
        a.q = q.data(), a.k = q.data() + keys, a.v = q.data() + 2 * keys, a.q_stride = stride;
        a.dt = dt.data(), a.dt_stride = decays, a.beta = beta.data(), a.beta_stride = 1;
        a.y_stride = width;
        expect_same(delta_rule_kernels(), a, static_cast<size_t>(kTokens * width) * 4,
                    static_cast<size_t>(keys) * static_cast<size_t>(width));
      }
    }
  }
}

TW_TEST_MAIN()
