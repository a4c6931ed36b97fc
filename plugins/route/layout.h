// What a route may choose from, for the check of plans and the tests.
#ifndef TENSORWRIGHT_PLUGINS_ROUTE_LAYOUT_H_
#define TENSORWRIGHT_PLUGINS_ROUTE_LAYOUT_H_

// The most comparisons that choosing the experts of one row may take: the number of experts times k.
enum { TW_MAX_ROUTE_COMPARISONS = 1 << 20 };

#endif  // TENSORWRIGHT_PLUGINS_ROUTE_LAYOUT_H_
