#!/usr/bin/env bash
# Under scripts/launch.sh on each node: a rank's number among those of all nodes, for by_hand.sh.
RANK=$((NODE * LOCAL_WORLD_SIZE + LOCAL_RANK)) exec "$@"
