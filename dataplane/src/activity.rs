//! What a worker does with its time: counted by the worker, read by anybody.
//!
//! A worker adds to a plain [`Activity`] once a turn, from the clock that it reads anyway, and publishes it with its lanes' kernel
//! counters, every 100 ms at most and when it is asked.

use crate::stats::SequenceLock;

/// Buckets of burst sizes: 1, 2–3, 4–7, …; the last holds everything larger.
pub const BURSTS: usize = 12;
/// Buckets of turn times; the last holds everything longer.
pub const TURNS: usize = 16;
/// The first bucket of turn times ends at that many ns: 256. Each of the others reaches twice as far.
pub const FIRST_TURN_NS: u64 = 256;

/// What a worker has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Time in turns that moved frames, in ns.
    pub busy_ns: u64,
    /// Time in turns that found nothing, in ns.
    pub looking_ns: u64,
    /// Time asleep, in ns.
    pub asleep_ns: u64,
    /// Frames that were moved.
    pub frames: u64,
    /// Lanes' turns that moved frames, by how many: bucket `i` counts 2^i to 2^(i+1) - 1.
    pub bursts: [u64; BURSTS],
    /// Turns of all lanes that moved frames, by how long they took: bucket `i` ends at `FIRST_TURN_NS` << i.
    pub turns: [u64; TURNS],
}

impl Activity {
    const WORDS: usize = 4 + BURSTS + TURNS;

    /// Counts a lane's turn that moved so many frames, at least one.
    #[inline]
    pub(crate) fn burst(&mut self, frames: usize) {
        self.frames += frames as u64;
        self.bursts[(frames.ilog2() as usize).min(BURSTS - 1)] += 1;
    }

    /// Counts a turn of all lanes.
    #[inline]
    pub(crate) fn turn(&mut self, took_ns: u64, moved: bool) {
        if moved {
            self.busy_ns += took_ns;
            let bucket = (took_ns / FIRST_TURN_NS)
                .checked_ilog2()
                .map_or(0, |log| log as usize + 1);
            self.turns[bucket.min(TURNS - 1)] += 1;
        } else {
            self.looking_ns += took_ns;
        }
    }

    /// What was done since an earlier moment.
    pub fn since(&self, earlier: &Self) -> Self {
        let (mut words, earlier) = (self.to_words(), earlier.to_words());
        words
            .iter_mut()
            .zip(earlier)
            .for_each(|(word, earlier)| *word = word.saturating_sub(earlier));
        Self::from_words(words)
    }

    fn to_words(self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[..4].copy_from_slice(&[self.busy_ns, self.looking_ns, self.asleep_ns, self.frames]);
        words[4..4 + BURSTS].copy_from_slice(&self.bursts);
        words[4 + BURSTS..].copy_from_slice(&self.turns);
        words
    }

    fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [busy_ns, looking_ns, asleep_ns, frames, rest @ ..] = words;
        let mut activity = Self {
            busy_ns,
            looking_ns,
            asleep_ns,
            frames,
            ..Self::default()
        };
        activity.bursts.copy_from_slice(&rest[..BURSTS]);
        activity.turns.copy_from_slice(&rest[BURSTS..]);
        activity
    }
}

/// Where a worker publishes its activity.
#[derive(Debug, Default)]
pub struct ActivityCounters {
    words: SequenceLock<{ Activity::WORDS }>,
}

impl ActivityCounters {
    /// Only the worker that owns them may call it.
    pub(crate) fn publish(&self, activity: &Activity) {
        self.words.write(activity.to_words());
    }

    /// The activity as it was published last.
    pub fn read(&self) -> Activity {
        Activity::from_words(self.words.read())
    }
}

/// The upper bound of the bucket in which that share (0 to 1) of all counts is reached, where the first bucket ends at `first` and
/// each of the others reaches twice as far. 0 if nothing was counted.
pub fn quantile(buckets: &[u64], first: u64, share: f64) -> u64 {
    let total: u64 = buckets.iter().sum();
    let wanted = (total as f64 * share).ceil().max(1.0) as u64;
    let mut sum = 0;
    let at = buckets.iter().position(|count| {
        sum += count;
        sum >= wanted
    });
    at.map_or(0, |at| first << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_and_turns_fall_into_their_buckets() {
        let mut activity = Activity::default();
        for (frames, bucket) in [
            (1, 0),
            (2, 1),
            (3, 1),
            (4, 2),
            (64, 6),
            (127, 6),
            (1 << 20, BURSTS - 1),
        ] {
            let before = activity.bursts[bucket];
            activity.burst(frames);
            assert_eq!(activity.bursts[bucket], before + 1, "{frames}");
        }
        for (ns, bucket) in [
            (0, 0),
            (255, 0),
            (256, 1),
            (511, 1),
            (512, 2),
            (u64::MAX / 4, TURNS - 1),
        ] {
            let before = activity.turns[bucket];
            activity.turn(ns, true);
            assert_eq!(activity.turns[bucket], before + 1, "{ns}");
        }
        activity.turn(7, false);
        assert_eq!(activity.looking_ns, 7);
    }

    #[test]
    fn words_survive_and_differences_are_taken() {
        let mut activity = Activity::default();
        activity.burst(5);
        activity.turn(1000, true);
        activity.asleep_ns = 3;
        let counters = ActivityCounters::default();
        counters.publish(&activity);
        assert_eq!(counters.read(), activity);
        assert_eq!(activity.since(&activity), Activity::default());
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        assert_eq!(quantile(&[0, 0], 1, 0.5), 0);
        assert_eq!(quantile(&[50, 50], 256, 0.5), 256);
        assert_eq!(quantile(&[50, 50], 256, 0.51), 512);
        assert_eq!(quantile(&[99, 0, 1], 1, 1.0), 4);
    }
}
