// Ends the wait of a rank at start-up for another one that has ended. Nobody is connected yet, but scripts/launch.sh is
// the parent of all ranks: it sees that one has ended, and how.
//
// TRAIN_GPT_ENDED names a file to which the script adds a line for each rank that has ended: what the end counts as, an
// exit code, and what to say of it ("75 rank 2 was killed by signal 9").
#pragma once

// Throws if launch.sh has seen a rank end: Error(resumable), or Error(no_device) where the rank ended well and starting
// again would not cure it. Does nothing where launch.sh has not started this process as that rank of so many.
void throw_if_a_rank_has_ended(int rank, int ranks);
