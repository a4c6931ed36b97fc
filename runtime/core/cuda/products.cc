#include "runtime/core/cuda/products.h"

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr size_t kMostWays = 4096;

// Numbers of cublasLt.h and library_types.h.
constexpr int kCompute32F = 68, kTransposed = 1, kEpilogueBias = 4;
constexpr int kDescTransA = 3, kDescEpilogue = 7, kDescBiasPointer = 8, kDescBiasType = 26;
constexpr int kPreferenceWorkspace = 1;
constexpr int kReal32F = 0, kReal16F = 2, kReal16BF = 14;

int type_number(CudaType type) {
  switch (type) {
    case CudaType::kFloat32:
      return kReal32F;
    case CudaType::kBfloat16:
      return kReal16BF;
    case CudaType::kFloat16:
      return kReal16F;
  }
  return kReal32F;
}

void* pointer(DevicePointer address) { return reinterpret_cast<void*>(address); }

}  // namespace

Products::Products(const Driver& driver, const std::vector<std::string>& libraries)
    : library_(libraries,
               "engines of target cuda need NVIDIA's cuBLASLt, and none can be loaded; pip install "
               "nvidia-cublas, or build the model with --target cpu"),
      ways_(kMostWays) {
  library_.find("cublasLtCreate", create_);
  library_.find("cublasLtDestroy", destroy_);
  library_.find("cublasLtMatmulDescCreate", describe_);
  library_.find("cublasLtMatmulDescDestroy", describe_end_);
  library_.find("cublasLtMatmulDescSetAttribute", describe_set_);
  library_.find("cublasLtMatrixLayoutCreate", layout_);
  library_.find("cublasLtMatrixLayoutDestroy", layout_end_);
  library_.find("cublasLtMatmulPreferenceCreate", preference_);
  library_.find("cublasLtMatmulPreferenceDestroy", preference_end_);
  library_.find("cublasLtMatmulPreferenceSetAttribute", preference_set_);
  library_.find("cublasLtMatmulAlgoGetHeuristic", heuristic_);
  library_.find("cublasLtMatmul", multiply_);
  workspace_ = DeviceMemory(driver, kWorkspace, "workspace of products");
  check(create_(&handle_), "cublasLtCreate");
}

Products::~Products() {
  if (handle_) destroy_(handle_);
}

void Products::check(int status, const char* call) const {
  if (status != 0)
    throw DeviceError(concat("[cuda] ", call, " of ", library_.name(), " failed with status ", status));
}

void Products::start(const Product& product, CudaStream* stream) {
  Way& way = way_of(product);
  if (product.bias) {
    const void* bias = pointer(product.bias);
    check(describe_set_(way.description, kDescBiasPointer, &bias, sizeof bias),
          "cublasLtMatmulDescSetAttribute");
  }
  const float alpha = 1, beta = product.c ? 1 : 0;
  const DevicePointer c = product.c ? product.c : product.d;
  // A column-major library computes D^T = w x^T.
  check(multiply_(handle_, way.description, &alpha, pointer(product.w), way.w, pointer(product.x), way.x,
                  &beta, pointer(c), way.d, pointer(product.d), way.d, way.heuristic.algorithm,
                  pointer(workspace_.address()), workspace_.bytes(), stream),
        "cublasLtMatmul");
}

Products::Way& Products::way_of(const Product& product) {
  const Key key{product.m,     product.n,         product.k,         product.stride,
                product.dtype, product.out_dtype, product.bias != 0, product.c != 0};
  if (const OwnedWay* way = ways_.find(key)) return **way;
  return *ways_.add(key, make_way(product));
}

Products::OwnedWay Products::make_way(const Product& product) const {
  OwnedWay made(new Way, WayEnd{this});
  Way& way = *made;
  const int type = type_number(product.dtype), out = type_number(product.out_dtype);
  void* preference = nullptr;
  int found = 0;
  try {
    check(describe_(&way.description, kCompute32F, kReal32F), "cublasLtMatmulDescCreate");
    const int transposed = kTransposed;
    check(describe_set_(way.description, kDescTransA, &transposed, sizeof transposed),
          "cublasLtMatmulDescSetAttribute");
    if (product.bias) {
      const int epilogue = kEpilogueBias;
      check(describe_set_(way.description, kDescEpilogue, &epilogue, sizeof epilogue),
            "cublasLtMatmulDescSetAttribute");
      check(describe_set_(way.description, kDescBiasType, &out, sizeof out),
            "cublasLtMatmulDescSetAttribute");
    }
    const auto m = static_cast<uint64_t>(product.m), n = static_cast<uint64_t>(product.n),
               k = static_cast<uint64_t>(product.k);
    check(layout_(&way.w, type, k, n, product.k), "cublasLtMatrixLayoutCreate");
    check(layout_(&way.x, type, k, m, product.k), "cublasLtMatrixLayoutCreate");
    check(layout_(&way.d, out, n, m, product.stride), "cublasLtMatrixLayoutCreate");
    check(preference_(&preference), "cublasLtMatmulPreferenceCreate");
    const size_t bytes = workspace_.bytes();
    check(preference_set_(preference, kPreferenceWorkspace, &bytes, sizeof bytes),
          "cublasLtMatmulPreferenceSetAttribute");
    const int status = heuristic_(handle_, way.description, way.w, way.x, way.d, way.d, preference, 1,
                                  &way.heuristic, &found);
    if (status != 0 || found < 1 || way.heuristic.state != 0) {
      throw Error("EngineError",
                  concat("[cuda] ", library_.name(), " cannot compute a product of [", product.m, ", ",
                         product.k, "] with [", product.n, ", ", product.k, "] (status ", status, ")"));
    }
  } catch (...) {
    if (preference) preference_end_(preference);
    throw;
  }
  preference_end_(preference);
  return made;
}

void Products::WayEnd::operator()(Way* way) const noexcept {
  for (void* layout : {way->w, way->x, way->d}) {
    if (layout) products->layout_end_(layout);
  }
  if (way->description) products->describe_end_(way->description);
  delete way;
}

}  // namespace tensorwright
