# Sourced: what two equal runs have in common of a metrics.jsonl, which is all but its times. In C++: without_times_testing.h.
without_times() { sed -E 's/"(tokens_per_s|mfu|step_ms|slowest_rank|waiting|exposed_ms|gpu_[a-z]+)":(\{[^}]*\}|[^,}]*),?//g' "$1"; }
without_times_or_memory() { without_times "$1" | sed -E 's/,?"memory_bytes":[^,}]*//'; }
