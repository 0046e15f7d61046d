//! What a worker does when no frame comes.
//!
//! [`Patience`] is asked by a worker in every turn that found nothing, and says when to stop looking and sleep. It knows no clock and
//! no ports. Why it decides so, and what others do: `docs/decisions/0013-idle.md`.

use std::{array, fmt, str::FromStr};

/// How a worker waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Looks again at once, always: lowest latency, one core burned.
    Spin,
    /// Looks again for as long as that has been worth it lately, then sleeps until a frame comes.
    #[default]
    Adaptive,
    /// Sleeps until a frame comes, as soon as there is none.
    Sleep,
}

/// How long a worker looks in vain before it sleeps.
#[derive(Debug)]
pub struct Patience {
    policy: IdlePolicy,
    gaps: Gaps,
    /// For how long to look, by the gaps.
    worth_ns: u64,
    /// Since when nothing was found.
    idle_since_ns: Option<u64>,
}

impl Patience {
    /// What it is worth not to sleep, in ns of looking.
    ///
    /// A wake-up costs 50 to 100 us of latency on a virtual machine; looking is given up where it takes, on average, a few times as long as
    /// that for each frame. So frames that come more than 4000 times a second find the worker awake, and 100 messages a second that
    /// are answered at once cost 2 × 100 × 256 us = 5 % of a core at most.
    pub const SLEEP_PRICE_NS: u64 = 256_000;

    /// One that knows nothing of gaps, and at first looks for as long as a sleep costs: never worse than twice the best choice (Karlin, Li,
    /// Manasse, Owicki: Empirical studies of competitive spinning, SOSP 1991).
    pub fn new(policy: IdlePolicy) -> Self {
        let gaps = Gaps::of(Self::SLEEP_PRICE_NS * 3 / 4);
        Self {
            policy,
            worth_ns: gaps.worth_ns(),
            gaps,
            idle_since_ns: None,
        }
    }

    /// Another policy from now on. What is known of gaps stays.
    pub fn set_policy(&mut self, policy: IdlePolicy) {
        self.policy = policy;
    }

    /// The policy in force.
    pub fn policy(&self) -> IdlePolicy {
        self.policy
    }

    /// The turn that began at `now_ns` moved frames.
    #[inline]
    pub fn moved(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.idle_since_ns.take() {
            self.gaps.add(now_ns.saturating_sub(since_ns));
            self.worth_ns = self.gaps.worth_ns();
        }
    }

    /// The turn that began at `now_ns` found nothing. Returns whether it is time to sleep.
    #[inline]
    pub fn is_over(&mut self, now_ns: u64) -> bool {
        let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
        match self.policy {
            IdlePolicy::Spin => false,
            IdlePolicy::Adaptive => now_ns.saturating_sub(since_ns) >= self.worth_ns,
            IdlePolicy::Sleep => true,
        }
    }
}

/// How long the times without frames have been lately: a histogram that forgets.
#[derive(Debug)]
struct Gaps {
    /// Which share of the gaps was of that length: bucket `i` ends at [`Gaps::end_ns`], the last has no end.
    shares: [f32; Self::BUCKETS],
    /// The mean length of all gaps is the sum of these, in ns.
    lengths_ns: [f32; Self::BUCKETS],
}

impl Gaps {
    /// Gaps up to 1 us, 2 us, … 512 us, and longer ones: to look for longer than twice the price of a sleep is never worth it.
    const BUCKETS: usize = 11;
    /// Weight of the latest gap. A half of what is known is forgotten after 11 gaps.
    const WEIGHT: f32 = 1.0 / 16.0;

    /// As if every gap had been that long.
    fn of(gap_ns: u64) -> Self {
        let at = Self::bucket(gap_ns);
        let only = |value| array::from_fn(|bucket| if bucket == at { value } else { 0.0 });
        Self {
            shares: only(1.0),
            lengths_ns: only(gap_ns as f32),
        }
    }

    fn end_ns(bucket: usize) -> u64 {
        1000 << bucket
    }

    fn bucket(gap_ns: u64) -> usize {
        let doublings = gap_ns.div_ceil(1000).max(1).next_power_of_two().ilog2();
        (doublings as usize).min(Self::BUCKETS - 1)
    }

    fn add(&mut self, gap_ns: u64) {
        for known in self.shares.iter_mut().chain(&mut self.lengths_ns) {
            *known *= 1.0 - Self::WEIGHT;
        }
        let at = Self::bucket(gap_ns);
        self.shares[at] += Self::WEIGHT;
        self.lengths_ns[at] += Self::WEIGHT * gap_ns as f32;
    }

    /// For how long to look so that a gap like those costs least on average: its length if it ends while the worker looks; else the looking
    /// and the price of a sleep. To sleep at once costs that price, so what is chosen costs no more.
    fn worth_ns(&self) -> u64 {
        let price_ns = Patience::SLEEP_PRICE_NS as f32;
        let (mut best_ns, mut least) = (0, price_ns);
        let (mut found_ns, mut missed) = (0.0, 1.0);
        for bucket in 0..Self::BUCKETS - 1 {
            found_ns += self.lengths_ns[bucket];
            missed = (missed - self.shares[bucket]).max(0.0);
            let end_ns = Self::end_ns(bucket);
            let cost = found_ns + missed * (end_ns as f32 + price_ns);
            if cost < least {
                (best_ns, least) = (end_ns, cost);
            }
        }
        best_ns
    }
}

impl fmt::Display for IdlePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
            Self::Sleep => "sleep",
        })
    }
}

impl FromStr for IdlePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "spin" => Ok(Self::Spin),
            "adaptive" => Ok(Self::Adaptive),
            "sleep" => Ok(Self::Sleep),
            _ => Err(format!("idle policy {text:?}: use spin, adaptive or sleep")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: u64 = 1000;
    const MS: u64 = 1000 * US;
    /// How long a turn takes, whether it finds something or not.
    const TURN_NS: u64 = 500;
    /// How much later a sleeper has a frame, and what waking it takes of the CPU.
    const WAKE_NS: u64 = 60 * US;

    /// A worker on a virtual clock, whose frames come when a test says.
    struct Worker {
        patience: Patience,
        now_ns: u64,
        arrival_ns: u64,
    }

    /// What it did.
    #[derive(Debug, Default)]
    struct Deeds {
        sleeps: usize,
        looked_ns: u64,
        longest_look_ns: u64,
        took_ns: u64,
    }

    impl Deeds {
        /// Share of a core: looking, and what sleeps cost.
        fn cpu(&self) -> f64 {
            (self.looked_ns + self.sleeps as u64 * WAKE_NS) as f64 / self.took_ns as f64
        }
    }

    impl Worker {
        fn new(policy: IdlePolicy) -> Self {
            Self {
                patience: Patience::new(policy),
                now_ns: 0,
                arrival_ns: 0,
            }
        }

        /// Lives through these gaps between arrivals.
        fn live(&mut self, gaps_ns: impl IntoIterator<Item = u64>) -> Deeds {
            let (mut deeds, start_ns) = (Deeds::default(), self.now_ns);
            for gap_ns in gaps_ns {
                self.arrival_ns += gap_ns;
                let mut look_ns = 0;
                while self.now_ns < self.arrival_ns {
                    if self.patience.is_over(self.now_ns) {
                        deeds.sleeps += 1;
                        self.now_ns = self.arrival_ns + WAKE_NS;
                    } else {
                        self.now_ns += TURN_NS;
                        look_ns += TURN_NS;
                    }
                }
                self.patience.moved(self.now_ns);
                self.now_ns += TURN_NS;
                deeds.looked_ns += look_ns;
                deeds.longest_look_ns = deeds.longest_look_ns.max(look_ns);
            }
            deeds.took_ns = self.now_ns - start_ns;
            deeds
        }

        /// One that has been used to such gaps.
        fn used_to(gap_ns: u64) -> Self {
            let mut worker = Self::new(IdlePolicy::Adaptive);
            worker.live([gap_ns; 100]);
            worker
        }
    }

    /// So many messages, one every `every_ns`, each answered after `reply_ns`.
    fn answered(every_ns: u64, reply_ns: u64, messages: usize) -> impl Iterator<Item = u64> {
        (0..messages).flat_map(move |_| [every_ns - reply_ns, reply_ns])
    }

    #[test]
    fn ten_thousand_a_second_never_sleep_whatever_was_before() {
        for before_ns in [US, 100 * US, 10 * MS, 1000 * MS] {
            for reply_ns in [10, 30, 50] {
                let mut worker = Worker::used_to(before_ns);
                // A hundredth of a second to get used to it.
                let first = worker.live(answered(100 * US, reply_ns * US, 100));
                assert!(first.sleeps <= 20, "{before_ns}: {first:?}");
                let then = worker.live(answered(100 * US, reply_ns * US, 10_000));
                assert_eq!(then.sleeps, 0, "{before_ns}, {reply_ns}: {then:?}");
            }
            // Without answers too.
            let mut worker = Worker::used_to(before_ns);
            worker.live([100 * US; 100]);
            assert_eq!(worker.live([100 * US; 10_000]).sleeps, 0);
        }
    }

    #[test]
    fn a_stall_now_and_then_does_not_put_a_busy_worker_to_sleep() {
        // Client and server share a CPU: every twentieth gap is the other's time slice.
        let gaps = (0..10_000).map(|at| if at % 20 == 0 { 2 * MS } else { 100 * US });
        let deeds = Worker::used_to(100 * US).live(gaps);
        assert_eq!(deeds.sleeps, 10_000 / 20, "{deeds:?}");
    }

    #[test]
    fn a_reply_that_usually_comes_is_waited_for() {
        let mut worker = Worker::used_to(10 * MS);
        worker.live(answered(10 * MS, 60 * US, 20));
        let deeds = worker.live(answered(10 * MS, 60 * US, 100));
        assert_eq!(deeds.sleeps, 100, "once a message: {deeds:?}");
        assert!(deeds.cpu() < 0.02, "{deeds:?}");
    }

    #[test]
    fn a_burst_after_quiet_wakes_the_worker_up_for_good() {
        // A sleeper takes the time to wake up for a part of the gap, so that takes some frames to learn.
        let mut worker = Worker::used_to(1000 * MS);
        assert!(worker.live([15 * US; 100]).sleeps <= 10);
        assert_eq!(worker.live([15 * US; 10_000]).sleeps, 0);
        // Without pauses there is nothing to decide.
        let mut worker = Worker::used_to(1000 * MS);
        assert_eq!(worker.live([0; 1000]).sleeps, 0);
    }

    #[test]
    fn quiet_ends_looking_and_is_slept_through() {
        let mut worker = Worker::used_to(100 * US);
        let deeds = worker.live([60_000 * MS]);
        assert!(
            deeds.sleeps == 1 && deeds.looked_ns <= 512 * US,
            "{deeds:?}"
        );
        // What wakes a worker without a frame does not have it look again.
        let (start_ns, worth_ns) = (worker.now_ns, worker.patience.worth_ns);
        assert!(!worker.patience.is_over(start_ns));
        let wakes = (1..1000).map(|at| start_ns + worth_ns + at * MS);
        for now_ns in wakes {
            assert!(worker.patience.is_over(now_ns));
        }
    }

    #[test]
    fn the_other_policies_do_not_learn() {
        let gaps = [US, 100 * US, 10 * MS];
        let spin = Worker::new(IdlePolicy::Spin).live(gaps);
        assert_eq!(spin.sleeps, 0);
        let sleep = Worker::new(IdlePolicy::Sleep).live(gaps);
        assert!(sleep.looked_ns == 0 && sleep.sleeps == 3, "{sleep:?}");
        // What was learnt is used when the policy is adaptive again.
        let mut worker = Worker::new(IdlePolicy::Spin);
        worker.live([10 * MS; 100]);
        worker.patience.set_policy(IdlePolicy::Adaptive);
        assert_eq!(worker.live([10 * MS; 10]).looked_ns, 0);
    }

    #[test]
    fn buckets_end_where_they_say() {
        for (ns, bucket) in [(0, 0), (1000, 0), (1001, 1), (2000, 1), (512_000, 9)] {
            assert_eq!(Gaps::bucket(ns), bucket, "{ns}");
        }
        assert_eq!(Gaps::bucket(512_001), 10);
        assert_eq!(Gaps::bucket(u64::MAX), 10);
    }

    fn any_gap_ns() -> impl Strategy<Value = u64> {
        prop_oneof![0..20 * US, 0..600 * US, 0..20 * MS]
    }

    proptest! {
        #[test]
        fn a_hundred_messages_a_second_cost_a_tenth_of_a_core_at_most(
            replies_us in prop::collection::vec(0_u64..5000, 1..8),
            before_ns in any_gap_ns(),
        ) {
            let mut worker = Worker::used_to(before_ns);
            let replies = replies_us.iter().cycle().take(300);
            let gaps = replies.flat_map(|&us| [10 * MS - us * US, us * US]);
            let deeds = worker.live(gaps);
            prop_assert!(deeds.cpu() <= 0.1, "{} {:?}", deeds.cpu(), deeds);
        }

        #[test]
        fn looking_costs_little_more_than_the_price_of_a_sleep_whatever_comes(
            gaps in prop::collection::vec(any_gap_ns(), 1..40),
        ) {
            let mut worker = Worker::new(IdlePolicy::Adaptive);
            worker.live(gaps.iter().copied());
            let deeds = worker.live(gaps.iter().copied().cycle().take(2000));
            let mean_ns = deeds.looked_ns / 2000;
            prop_assert!(mean_ns <= Patience::SLEEP_PRICE_NS * 5 / 4, "{mean_ns}");
            prop_assert!(deeds.longest_look_ns <= 2 * Patience::SLEEP_PRICE_NS + TURN_NS);
        }

        #[test]
        fn a_steady_rate_is_watched_or_slept_through_and_nothing_between(gap_us in 1_u64..10_000) {
            let deeds = Worker::used_to(gap_us * US).live(vec![gap_us * US; 1000]);
            let watched = deeds.sleeps == 0;
            let slept = deeds.sleeps == 1000 && deeds.looked_ns == 0;
            prop_assert!(watched || slept, "{:?}", deeds);
            if gap_us <= 128 {
                prop_assert!(watched);
            }
            if gap_us >= 512 {
                prop_assert!(slept);
            }
        }
    }
}
