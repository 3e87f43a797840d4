// A library that is no plugin.
extern "C" __attribute__((visibility("default"))) int helmway_nothing() { return 0; }
