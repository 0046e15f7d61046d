//! What this process may do: its capabilities, and who can take them from it.
//!
//! Called by `check`, and by whoever was refused something and has to say which right is missing.

use std::fs;

/// Capabilities by their numbers in `include/uapi/linux/capability.h`.
pub(crate) mod capability {
    pub(crate) const NET_ADMIN: u32 = 12;
    pub(crate) const NET_RAW: u32 = 13;
    pub(crate) const IPC_LOCK: u32 = 14;
    pub(crate) const SYS_ADMIN: u32 = 21;
    pub(crate) const PERFMON: u32 = 38;
    pub(crate) const BPF: u32 = 39;
}

/// What `/proc/self/status` says of this process.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    pub(crate) effective: u64,
    pub(crate) no_new_privileges: bool,
    pub(crate) seccomp: bool,
    /// Allowed CPUs as numbers and ranges.
    pub(crate) cpus: String,
}

impl Rights {
    /// Those of this process; none if they can't be read.
    pub(crate) fn own() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    pub(crate) fn parse(status: &str) -> Self {
        let mut rights = Self::default();
        for (key, value) in status.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key {
                "CapEff" => rights.effective = u64::from_str_radix(value, 16).unwrap_or(0),
                "NoNewPrivs" => rights.no_new_privileges = value == "1",
                "Seccomp" => rights.seccomp = value != "0",
                "Cpus_allowed_list" => rights.cpus = value.into(),
                _ => {}
            }
        }
        rights
    }

    pub(crate) fn has(&self, capability: u32) -> bool {
        self.effective & (1 << capability) != 0
    }

    /// Those of a list that are missing. CAP_SYS_ADMIN includes some where BPF programs are concerned (`bpf_net_capable`,
    /// `perfmon_capable`, `include/linux/capability.h` and `bpf.h`).
    pub(crate) fn missing(&self, needed: &[(u32, &'static str)]) -> Vec<&'static str> {
        use capability::{BPF, NET_ADMIN, PERFMON, SYS_ADMIN};
        let included = |right| self.has(SYS_ADMIN) && [BPF, NET_ADMIN, PERFMON].contains(&right);
        needed
            .iter()
            .filter(|(right, _)| !self.has(*right) && !included(*right))
            .map(|(_, name)| *name)
            .collect()
    }

    pub(crate) fn sandbox(&self) -> &'static str {
        match (self.seccomp, self.no_new_privileges) {
            (false, false) => "no seccomp filter, new privileges allowed",
            (true, false) => "a seccomp filter, new privileges allowed",
            (false, true) => "no seccomp filter, no new privileges (setcap has no effect)",
            (true, true) => "a seccomp filter, no new privileges (setcap has no effect)",
        }
    }

    /// What to do where the kernel refused something that takes the rights `needed`. `all` are those of the back end, so that
    /// whoever adds one adds the others too.
    #[cfg(feature = "xdp")]
    pub(crate) fn remedy(
        &self,
        needed: &[(u32, &'static str)],
        all: &[(u32, &'static str)],
    ) -> String {
        let missing = self.missing(needed);
        if missing.is_empty() {
            let names: Vec<_> = needed.iter().map(|(_, name)| *name).collect();
            return format!(
                "refused in spite of CAP_{}, which must be of the initial user namespace: allow it in the seccomp profile or security module \
                 of the container",
                names.join(", CAP_")
            );
        }
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let all: Vec<_> = all
            .iter()
            .map(|(_, name)| format!("cap_{}", name.to_lowercase()))
            .collect();
        let setcap = if self.no_new_privileges {
            String::new()
        } else {
            format!(", or setcap {}+ep l2relay", all.join(","))
        };
        format!(
            "CAP_{} {verb} missing: run as root{setcap}",
            missing.join(", CAP_")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_status() {
        let status = "Name:\tx\nCapEff:\t0000000000002000\nNoNewPrivs:\t1\nSeccomp:\t2\nCpus_allowed_list:\t1,3-4\n";
        let rights = Rights::parse(status);
        assert!(rights.has(capability::NET_RAW));
        assert!(!rights.has(capability::NET_ADMIN));
        assert_eq!(
            rights.sandbox(),
            "a seccomp filter, no new privileges (setcap has no effect)"
        );
        assert_eq!(rights.cpus, "1,3-4");
        assert_eq!(Rights::parse("").effective, 0);
    }

    #[cfg(feature = "xdp")]
    #[test]
    fn a_refusal_names_what_is_missing_and_no_more() {
        use capability::{BPF, NET_ADMIN, NET_RAW, SYS_ADMIN};
        let two = [(BPF, "BPF"), (NET_ADMIN, "NET_ADMIN")];
        let all = [two[0], two[1], (NET_RAW, "NET_RAW")];
        let with = |capabilities: &[u32]| Rights {
            effective: capabilities.iter().map(|right| 1 << right).sum(),
            ..Rights::default()
        };
        let setcap = "run as root, or setcap cap_bpf,cap_net_admin,cap_net_raw+ep l2relay";
        for (has, missing) in [
            (&[][..], "CAP_BPF, CAP_NET_ADMIN are missing"),
            (&[BPF], "CAP_NET_ADMIN is missing"),
            (&[NET_ADMIN], "CAP_BPF is missing"),
        ] {
            let remedy = with(has).remedy(&two, &all);
            assert_eq!(remedy, format!("{missing}: {setcap}"));
        }
        for has in [&[BPF, NET_ADMIN][..], &[SYS_ADMIN]] {
            let remedy = with(has).remedy(&two, &all);
            assert!(
                remedy.starts_with("refused in spite of CAP_BPF, CAP_NET_ADMIN"),
                "{remedy}"
            );
        }
        let sandboxed = Rights {
            no_new_privileges: true,
            ..Rights::default()
        };
        let remedy = sandboxed.remedy(&two, &all);
        assert_eq!(remedy, "CAP_BPF, CAP_NET_ADMIN are missing: run as root");
    }
}
