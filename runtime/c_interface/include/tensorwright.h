// The C interface of Tensorwright: it opens an engine of target cpu and runs requests of token ids.
//
// docs/c-interface.md explains it with examples; tensorwright.hpp wraps it for C++17.
//
// Errors: a function that can fail returns a tw_status, TW_OK or what went wrong. Its last parameter, unless
// it is NULL, gets an error object with the message, which the caller frees with tw_error_free(); it gets
// NULL where nothing failed. No C++ exception crosses this interface.
//
// Threads: any thread may call any function at any time, also for the same engine. tw_wait() and tw_close()
// may take long, tw_open() reads all weights, and all others return soon. Events and errors belong to the
// caller: two threads must not use one of them at the same time while one of the two frees it.
//
// Versions: functions are added, never changed or removed, while TW_ABI_VERSION stays. Structs begin with
// `size`, which the caller sets to sizeof of the struct that it was compiled with: members are added only at
// the end, and the library neither reads nor writes beyond that size. Values of enums are added only at their
// end, so a caller must expect values that it does not know.
#ifndef TENSORWRIGHT_H_
#define TENSORWRIGHT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It is a part of the library's name too: libtensorwright.so.1. */
#define TW_ABI_VERSION 1

#if defined(__GNUC__)
#define TW_API __attribute__((visibility("default")))
#else
#define TW_API
#endif

/* An engine that is open. The handle is a number that is never used again, so a call with the handle of an
 * engine that was closed fails with TW_CLOSED, and harms nothing. */
typedef struct tw_engine tw_engine;
/* Why a call failed. */
typedef struct tw_error tw_error;
/* News of requests, as tw_wait() returns them. */
typedef struct tw_events tw_events;

typedef enum tw_status {
  TW_OK = 0,
  TW_INVALID_ARGUMENT = 1, /* a pointer is NULL that must not be, or a struct's size is wrong */
  TW_CLOSED = 2,           /* the handle is of an engine that was closed, or of none */
  TW_ENGINE_ERROR = 3,     /* the folder is no engine, or is damaged, or is of another version or target */
  TW_INVALID_OPTION = 4,   /* an option of tw_open() is unknown, or is out of its range */
  TW_INVALID_REQUEST = 5,  /* a prompt or a parameter is impossible; nothing was started */
  TW_PROMPT_TOO_LONG = 6,  /* prompt and max_tokens do not fit the engine */
  TW_QUEUE_FULL = 7,       /* max_queue_size requests wait already; try again later */
  TW_DEADLINE = 8,         /* the request could not end by its deadline any more */
  TW_ENGINE_STOPPED = 9,   /* the engine was shut down, or died; the message says why */
  TW_OUT_OF_MEMORY = 10,
  TW_TASK = 11,      /* the engine was built for something else than drawing tokens */
  TW_ISA = 12,       /* TENSORWRIGHT_ISA names an instruction set that this processor lacks */
  TW_NUMERICAL = 13, /* logits came out as NaN or infinite */
  TW_FORKED = 14,    /* the engine was opened by a process of which this one is a fork */
  TW_OTHER = 15      /* any other error: tw_error_type() names it */
} tw_status;

/* Why a completion ended. */
typedef enum tw_finish {
  TW_FINISH_NONE = 0, /* it goes on */
  TW_FINISH_STOP = 1, /* an end-of-sequence token, or one of stop_token_ids: the last of its tokens */
  TW_FINISH_LENGTH = 2,
  TW_FINISH_ABORT = 3,   /* tw_cancel(), or tw_close() */
  TW_FINISH_TIMEOUT = 4, /* the parameter timeout */
  TW_FINISH_ERROR = 5    /* tw_event.error says which */
} tw_finish;

/* What the tokens of a request are. */
typedef struct tw_request {
  size_t size; /* sizeof(tw_request) */
  /* The prompt, as token ids of the engine's own tokenizer. The call copies it. */
  const int32_t* tokens;
  size_t token_count;
  /* The sampling parameters: an object of JSON with the names and defaults of the Python class
   * SamplingParams, such as {"max_tokens": 32, "temperature": 0}; NULL for all defaults. tw_facts() lists
   * them. */
  const char* params;
  /* For a request whose tokens the caller masks: bit t % 32 of word t / 32 says whether token t may be the
   * first one, in ceil(vocab_size / 32) words. NULL and 0 without masks. See tw_set_mask(). */
  const uint32_t* first_mask;
  size_t first_mask_words;
} tw_request;

/* A token that was drawn, or one that could have been. */
typedef struct tw_logprob {
  int32_t token;
  int32_t rank;   /* 1 + the number of tokens with a greater logit */
  double logprob; /* the natural logarithm of its probability, before the parameters change it */
} tw_logprob;

/* The logprobs of one position: first those of its token, then of the likeliest ones that were asked for. */
typedef struct tw_logprobs {
  const tw_logprob* entries;
  size_t count;
} tw_logprobs;

/* What is new of one completion of a request. Pointers lead into the tw_events, and live as long as those. */
typedef struct tw_event {
  size_t size;        /* sizeof(tw_event) */
  int64_t request;    /* the number that tw_submit() gave */
  int32_t completion; /* from 0, below the parameter n; each completion has a last event */
  tw_finish finish;   /* TW_FINISH_NONE in all events but the last one of the completion */
  const int32_t* tokens;
  size_t token_count;
  const tw_logprobs* logprobs; /* one for each token, if the parameter logprobs asks for them */
  size_t logprob_count;
  const tw_logprobs* prompt_logprobs; /* of the next tokens of the prompt, from its second one on */
  size_t prompt_logprob_count;
  int32_t stop_token;         /* the token that ended the completion, -1 if none did */
  int32_t prompt_tokens;      /* usage: tokens of the prompt */
  int32_t cached_tokens;      /* of those, tokens that the prefix cache had */
  tw_status error;            /* with TW_FINISH_ERROR: what ended the request */
  const char* error_type;     /* the name of the error's class in Python; "" without an error */
  const char* error_message;  /* "" without an error */
  double cumulative_logprob;  /* of the tokens of a beam, in its last event */
  double queue_seconds;       /* from the request's arrival to its first step; -1: not yet */
  double first_token_seconds; /* from its arrival to its first token; -1: not yet */
  /* Completions of the request that go on after the events of this tw_events; 0: these are its last ones. */
  int32_t open_completions;
} tw_event;

/* The library's TW_ABI_VERSION, which must be that of the header. */
TW_API uint32_t tw_abi_version(void);
/* The version of Tensorwright, such as "0.1.0". */
TW_API const char* tw_version(void);

/* Errors. A NULL error reads as TW_OK and "". */
TW_API tw_status tw_error_status(const tw_error* error);
/* The name of the error's class in Python, such as "EngineError"; docs/errors.md lists them. */
TW_API const char* tw_error_type(const tw_error* error);
/* What must hold, what came and what to do, in UTF-8. */
TW_API const char* tw_error_message(const tw_error* error);
TW_API void tw_error_free(tw_error* error); /* does nothing for NULL */

/* Opens the engine in the folder `path`, which build-engine has written for target cpu, and starts its
 * threads. All files are checked against their checksums first. options: an object of JSON with names and
 * defaults of the keywords of the Python class LLM, such as {"threads": 8, "kv_cache_memory": "4GiB"}; NULL
 * for all defaults. *engine is NULL unless the call succeeds. */
TW_API tw_status tw_open(const char* path, const char* options, tw_engine** engine, tw_error** error);

/* Refuses new requests, lets those under way finish for at most `drain_seconds` (0: not at all, negative:
 * without limit), ends the others with TW_FINISH_ABORT, and frees the engine. Until then other threads fetch
 * events, cancel and set masks as before; a call for the same handle with 0 seconds ends the drain. Threads
 * that wait for events are woken. Events that nobody has fetched when it returns are lost: tw_drain() before
 * it leaves them. A call for a handle that is closed, or that another call has closed meanwhile, fails with
 * TW_CLOSED; one for NULL does nothing. Engines that are open when the process exits are ended then. */
TW_API tw_status tw_close(tw_engine* engine, double drain_seconds, tw_error** error);
/* Does the same, but leaves the engine's handle open: its events can be fetched still, and it must be closed
 * with tw_close(). */
TW_API tw_status tw_drain(tw_engine* engine, double seconds, tw_error** error);

/* Facts of the engine as an object of JSON, which the caller frees with tw_string_free(): the model, its
 * limits, the end-of-sequence tokens, the options that the engine runs with, and all parameters with their
 * defaults. */
TW_API tw_status tw_facts(tw_engine* engine, char** json, tw_error** error);
/* Counts of the engine as of its last step, in the same way: those of LLM.get_stats() in Python. */
TW_API tw_status tw_stats(tw_engine* engine, char** json, tw_error** error);
TW_API void tw_string_free(char* text); /* does nothing for NULL */

/* Submits a request. *number gets its number, which is above 0. Every request that was submitted must be
 * waited for until the last event of its last completion: its events are kept until then. */
TW_API tw_status tw_submit(tw_engine* engine, const tw_request* request, int64_t* number, tw_error** error);

/* In place of a request's number: all requests of the engine that nobody has waited for by their number. */
#define TW_ANY_REQUEST INT64_C(0)
/* In place of a completion's number: all of them. */
#define TW_ALL_COMPLETIONS INT32_C(-1)

/* Waits for news of a request, or of all with TW_ANY_REQUEST, for at most `seconds` (0: looks only, negative:
 * without limit). *events gets what came, which the caller frees with tw_events_free(); no events and TW_OK
 * mean that the time is over. Tokens of a completion that came since the last call are one event. Events come
 * once, to one of those who wait, and a call that fails leaves them to the next one. Fails with
 * TW_INVALID_REQUEST for a request that never was, or whose last event was fetched, and for TW_ANY_REQUEST
 * with TW_ENGINE_STOPPED when the engine has ended and all events were fetched. */
TW_API tw_status tw_wait(tw_engine* engine, int64_t request, double seconds, tw_events** events,
                         tw_error** error);
TW_API size_t tw_events_count(const tw_events* events); /* 0 for NULL */
/* Writes event number `index` to *event, whose size the caller has set. */
TW_API tw_status tw_events_get(const tw_events* events, size_t index, tw_event* event, tw_error** error);
TW_API void tw_events_free(tw_events* events); /* does nothing for NULL */

/* Ends a request before the engine's next step, or one of its completions. Its last event says
 * TW_FINISH_ABORT, unless it finished in the step under way. *alive, unless NULL, is 1 if it was alive, else
 * 0. */
TW_API tw_status tw_cancel(tw_engine* engine, int64_t request, int32_t completion, int* alive,
                           tw_error** error);

/* Sets which tokens a completion of a request with masks may have as token number `generated`, from 0:
 * `words` as tw_request.first_mask. Until the mask comes, the completion sits out the engine's steps. *alive
 * as in tw_cancel(). */
TW_API tw_status tw_set_mask(tw_engine* engine, int64_t request, int32_t completion, int32_t generated,
                             const uint32_t* words, size_t word_count, int* alive, tw_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TENSORWRIGHT_H_ */
