// What the C interface takes of the declarations of Python: parameters, options, bounds, names and units.
// Generated from SamplingParams, EngineFields and others by
//   python -m tensorwright.runtime.c_interface.declarations
// Change those and run that; a test compares.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_DECLARATIONS_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_DECLARATIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

// clang-format off

// Parameters: name, member of Sampling, form, when it may be given, default as JSON.
#define TENSORWRIGHT_PARAMS(FIELD) \
  FIELD(n, n, integer, kAlways, "1") \
  FIELD(beam_width, beam_width, integer, kAlways, "1") \
  FIELD(length_penalty, length_penalty, number, kBeams, "1.0") \
  FIELD(early_stopping, early_stopping, early_stopping, kBeams, "false") \
  FIELD(min_tokens, min_tokens, integer, kAlways, "0") \
  FIELD(temperature, temperature, number, kDrawing, "1.0") \
  FIELD(top_k, top_k, limit, kDrawing, "0") \
  FIELD(top_p, top_p, number, kDrawing, "1.0") \
  FIELD(min_p, min_p, number, kDrawing, "0.0") \
  FIELD(typical_p, typical_p, number, kDrawing, "1.0") \
  FIELD(xtc_threshold, xtc_threshold, number, kAlways, "0.1") \
  FIELD(xtc_probability, xtc_probability, number, kDrawing, "0.0") \
  FIELD(repetition_penalty, repetition_penalty, number, kAlways, "1.0") \
  FIELD(presence_penalty, presence_penalty, number, kAlways, "0.0") \
  FIELD(frequency_penalty, frequency_penalty, number, kAlways, "0.0") \
  FIELD(dry_multiplier, dry_multiplier, number, kAlways, "0.0") \
  FIELD(dry_base, dry_base, number, kAlways, "1.75") \
  FIELD(dry_allowed_length, dry_allowed_length, integer, kAlways, "2") \
  FIELD(dry_penalty_last_n, dry_penalty_last_n, integer, kAlways, "-1") \
  FIELD(no_repeat_ngram_size, no_repeat_ngram_size, integer, kAlways, "0") \
  FIELD(logit_bias, logit_bias, biases, kAlways, "null") \
  FIELD(seed, seed, seed, kAlways, "null") \
  FIELD(stop_token_ids, stop_token_ids, token_ids, kAlways, "[]") \
  FIELD(ignore_eos, ignore_eos, flag, kAlways, "false") \
  FIELD(logprobs, logprobs, optional_count, kAlways, "null") \
  FIELD(prompt_logprobs, prompt_logprobs, optional_count, kAlways, "null") \
  FIELD(timeout, timeout_s, optional_seconds, kAlways, "null") \
  FIELD(priority, priority, integer, kAlways, "0") \
  FIELD(tenant, tenant, integer, kAlways, "0") \
  FIELD(tenant_weight, tenant_weight, number, kAlways, "1.0") \
  FIELD(deadline, deadline_s, optional_seconds, kAlways, "null") \
  FIELD(cache_salt, cache_salt, salt, kAlways, "null") \


// Options: name, type, form, default, choices.
#define TENSORWRIGHT_OPTIONS(FIELD) \
  FIELD(kv_cache_memory, std::optional<int64_t>, size, std::nullopt, "") \
  FIELD(max_batch_size, std::optional<int32_t>, count, std::nullopt, "") \
  FIELD(max_num_tokens, std::optional<int32_t>, count, std::nullopt, "") \
  FIELD(max_prefill_chunk, std::optional<int32_t>, count, std::nullopt, "") \
  FIELD(itl_goal, std::optional<double>, duration, std::nullopt, "") \
  FIELD(priority_ageing, std::optional<double>, duration, std::nullopt, "") \
  FIELD(max_prompt_logprob_rows, int32_t, count, 64, "") \
  FIELD(max_queue_size, int32_t, count, 1024, "") \
  FIELD(threads, std::optional<int32_t>, count, std::nullopt, "") \
  FIELD(load, std::string, choice, "map", "map|copy") \
  FIELD(numa, std::string, choice, "auto", "auto|off|split|interleave") \
  FIELD(enable_prefix_caching, std::optional<bool>, flag, std::nullopt, "") \
  FIELD(state_snapshots, std::optional<int32_t>, count, std::nullopt, "") \
  FIELD(jump_forward, std::optional<bool>, flag, std::nullopt, "") \


// Numbers of the option speculative: name, default, least, greatest, methods that have it.
#define TENSORWRIGHT_SPECULATION(FIELD) \
  FIELD(tokens, 0, 1, 16, "ngram|suffix") \
  FIELD(rows, 64, 1, 4096, "ngram|suffix") \
  FIELD(min_match, 2, 2, 32, "ngram|suffix") \
  FIELD(remembered, 524288, 1024, 67108864, "suffix") \


namespace tensorwright {

inline constexpr char kFormat[] = "tensorwright-engine";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kChecksumsFile[] = "checksums.txt";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";
inline constexpr char kPlanFile[] = "cpu/plan.bin";
inline constexpr char kWeightsFile[] = "cpu/weights.bin";
inline constexpr char kRemedy[] = "build the engine again, or copy it again from where it came";
inline constexpr char kProposers[] = "ngram|suffix";
inline constexpr int32_t kFormatVersion = 1;
inline constexpr int32_t kDecisionInterval = 128;
inline constexpr int32_t kDefaultMaxBatchSize = 64;
inline constexpr int32_t kDefaultMaxNumTokens = 512;
inline constexpr int32_t kMaxStopTokenIds = 256;
inline constexpr int32_t kMaxBadWords = 1024;
inline constexpr int32_t kMaxBadWordTokens = 64;
inline constexpr int32_t kMaxLogitBiases = 524288;
inline constexpr int32_t kMaxSaltLength = 256;
inline constexpr char kDefaultMaxTokens[] = "16";
inline constexpr char kDefaultDryBreakers[] = "[\"\\n\", \":\", \"\\\"\", \"*\"]";

struct Named {
  const char *name, *text;
};
struct Unit {
  const char* name;
  double factor;
};

// Parameters that are refused, and why.
inline constexpr Named kRefusedParams[] = {
    {"logits_processors", "they are functions of Python"},
    {"stop", "this interface gives token ids, and texts are made by the tokenizer above it: look for the text in what you decode, and cancel the request; or pass stop_token_ids"},
    {"include_stop_str_in_output", "it belongs to stop, which is not here: this interface gives token ids, and texts are made by the tokenizer above it"},
    {"detokenize", "this interface gives token ids, and texts are made by the tokenizer above it"},
    {"skip_special_tokens", "this interface gives token ids, and texts are made by the tokenizer above it"},
    {"kept_special_tokens", "this interface gives token ids, and texts are made by the tokenizer above it"},
    {"guided_decoding", "grammars are compiled in Python: make masks yourself, and pass first_mask and tw_set_mask()"},
    {"adapter", "adapters are loaded in Python: merge it into the checkpoint with tensorwright merge-lora"},
};

// Options that are refused, and why.
inline constexpr Named kRefusedOptions[] = {
    {"watchdog", "another engine is put in place by Python: read tw_stats() and open the engine again"},
    {"step_limit", "it belongs to watchdog, which is not here"},
    {"watchdog_dir", "it belongs to watchdog, which is not here"},
    {"rank_timeout", "this interface runs engines of one rank"},
    {"devices", "this interface runs engines of target cpu"},
    {"gpu_memory", "this interface runs engines of target cpu"},
    {"adapters", "adapters are loaded in Python"},
    {"max_loras", "adapters are loaded in Python"},
    {"max_lora_rank", "adapters are loaded in Python"},
    {"cache_events", "it is a part of the Python API and of the server"},
    {"trace", "the file of a trace is written by Python"},
    {"guided_vocabulary", "grammars are compiled in Python"},
    {"chat_template", "it is a part of the Python API and of the server"},
    {"tool_parser", "it is a part of the Python API and of the server"},
    {"reasoning_parser", "it is a part of the Python API and of the server"},
    {"generation_config", "what a request leaves out is as SamplingParams says; the model's defaults are in tw_facts()"},
    {"prefix_cache_memory", "the secret of the blocks that are kept, and their identity, are made in Python"},
    {"prefix_cache_disk", "the secret of the blocks that are kept, and their identity, are made in Python"},
    {"prefix_cache_disk_size", "the secret of the blocks that are kept, and their identity, are made in Python"},
    {"prefix_cache_ttl", "the secret of the blocks that are kept, and their identity, are made in Python"},
    {"pinned_prefix_memory", "prefixes are pinned by Python"},
};

// What generation_config.json calls parameters, and their names here.
inline constexpr Named kGenerationFields[] = {
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"repetition_penalty", "repetition_penalty"},
    {"max_new_tokens", "max_tokens"},
};

// Of sizes, in bytes; in small letters.
inline constexpr Unit kSizeUnits[] = {
    {"", 1.0},
    {"b", 1.0},
    {"k", 1000.0},
    {"kb", 1000.0},
    {"kib", 1024.0},
    {"m", 1000000.0},
    {"mb", 1000000.0},
    {"mib", 1048576.0},
    {"g", 1000000000.0},
    {"gb", 1000000000.0},
    {"gib", 1073741824.0},
    {"t", 1000000000000.0},
    {"tb", 1000000000000.0},
    {"tib", 1099511627776.0},
};

// Of times, in seconds.
inline constexpr Unit kDurationUnits[] = {
    {"us", 1e-06},
    {"ms", 0.001},
    {"s", 1.0},
    {"", 1.0},
    {"m", 60.0},
    {"min", 60.0},
    {"h", 3600.0},
};

}  // namespace tensorwright
// clang-format on

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_DECLARATIONS_H_
