// Products of activations with stored matrices by NVIDIA's cuBLASLt, found when an engine is opened. Types
// and numbers are those of its public interface, cublasLt.h.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_PRODUCTS_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/core/base/recent_map.h"
#include "runtime/core/cuda/cuda_plan.h"
#include "runtime/core/cuda/device_memory.h"
#include "runtime/core/cuda/driver.h"
#include "runtime/core/cuda/library.h"

namespace tensorwright {

// One product of a step, with all addresses. bias and c may be 0. stride: the numbers from one row of c and d
// to the next, n or more.
struct Product {
  int64_t m, n, k, stride;
  CudaType dtype, out_dtype;
  DevicePointer x, w, bias, c, d;
};

class Products {
 public:
  // libraries: the names of cuBLASLt, of which the first that is there is taken. Throws
  // Error{"MissingDependencyError"}.
  Products(const Driver& driver, const std::vector<std::string>& libraries);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Starts a product on a stream. The first product of a shape asks the library how to compute it, which
  // takes tens of microseconds. Throws DeviceError; Error{"EngineError"} for a product that the library
  // cannot compute.
  void start(const Product& product, CudaStream* stream);

 private:
  // cublasLtMatmulHeuristicResult_t.
  struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
  };
  // How products of one shape are computed.
  struct Way {
    void *description = nullptr, *w = nullptr, *x = nullptr, *d = nullptr;
    Heuristic heuristic{};
  };
  struct WayEnd {
    const Products* products;
    void operator()(Way* way) const noexcept;
  };
  using OwnedWay = std::unique_ptr<Way, WayEnd>;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, CudaType, CudaType, bool, bool>;

  void check(int status, const char* call) const;
  Way& way_of(const Product& product);
  OwnedWay make_way(const Product& product) const;

  const Library library_;
  int (*create_)(void**);
  int (*destroy_)(void*);
  int (*describe_)(void**, int, int);
  int (*describe_end_)(void*);
  int (*describe_set_)(void*, int, const void*, size_t);
  int (*layout_)(void**, int, uint64_t, uint64_t, int64_t);
  int (*layout_end_)(void*);
  int (*preference_)(void**);
  int (*preference_end_)(void*);
  int (*preference_set_)(void*, int, const void*, size_t);
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*);
  int (*multiply_)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, size_t, CudaStream*);

  void* handle_ = nullptr;
  DeviceMemory workspace_;
  RecentMap<Key, OwnedWay> ways_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_PRODUCTS_H_
