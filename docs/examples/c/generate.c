/* Runs one prompt of token ids through an engine, and prints the tokens as they come.
 *
 *   generate ENGINE PARAMS TOKEN...
 *   generate out/pico '{"max_tokens": 16, "temperature": 0}' 318 279 1212
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensorwright.h"

/* Prints why a call failed, frees the error, and returns what main() returns then. */
static int failed(const char* call, tw_error* error) {
  fprintf(stderr, "%s: %s: %s\n", call, tw_error_type(error), tw_error_message(error));
  tw_error_free(error);
  return 1;
}

/* Prints the tokens of all events. Returns whether the request goes on. */
static int print_events(const tw_events* events) {
  int goes_on = 1;
  for (size_t i = 0; i < tw_events_count(events); ++i) {
    tw_event event = {.size = sizeof event};
    if (tw_events_get(events, i, &event, NULL) != TW_OK) return 0;
    for (size_t t = 0; t < event.token_count; ++t) printf("%" PRId32 "\n", event.tokens[t]);
    if (event.finish == TW_FINISH_ERROR) fprintf(stderr, "%s: %s\n", event.error_type, event.error_message);
    if (event.finish != TW_FINISH_NONE)
      fprintf(stderr, "%" PRId32 " tokens of prompt, %" PRId32 " of them cached\n", event.prompt_tokens,
              event.cached_tokens);
    goes_on = event.open_completions > 0;
  }
  fflush(stdout);
  return goes_on;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: generate ENGINE PARAMS TOKEN...\n");
    return 2;
  }
  if (tw_abi_version() != TW_ABI_VERSION) {
    fprintf(stderr, "the library is of another version than its header\n");
    return 1;
  }
  const size_t count = (size_t)(argc - 3);
  int32_t* tokens = malloc(count * sizeof *tokens);
  if (tokens == NULL) return 1;
  for (size_t i = 0; i < count; ++i) tokens[i] = (int32_t)strtol(argv[i + 3], NULL, 10);

  tw_error* error = NULL;
  tw_engine* engine = NULL;
  int status = 0;
  if (tw_open(argv[1], NULL, &engine, &error) != TW_OK) {
    free(tokens);
    return failed("tw_open", error);
  }
  const tw_request request = {
      .size = sizeof request, .tokens = tokens, .token_count = count, .params = argv[2]};
  int64_t number = 0;
  if (tw_submit(engine, &request, &number, &error) != TW_OK) status = failed("tw_submit", error);
  for (int goes_on = status == 0; goes_on;) {
    tw_events* events = NULL;
    if (tw_wait(engine, number, -1, &events, &error) != TW_OK) {
      status = failed("tw_wait", error);
      break;
    }
    goes_on = print_events(events);
    tw_events_free(events);
  }
  free(tokens);
  if (tw_close(engine, 0, &error) != TW_OK) status = failed("tw_close", error);
  return status;
}
