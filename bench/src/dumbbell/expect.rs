//! What goodput to expect: formulae, and what others have published.

/// Published figures of DCE Cradle's dumbbell: goodput in kbit/s, mean and standard deviation.
///
/// Read from the plots of ns-3-dce's documentation (`dce-cradle-usecase`, to within 1.3 kbit/s): 100 runs of 60 s, 2 Mbit/s, 100 ms one
/// way, 5 % loss (of data only, but in both directions in the real network).
pub(super) const PUBLISHED: [(&str, f64, f64); 6] = [
    ("DCE Cradle (net-next)", 218.6, 16.7),
    ("DCE Cradle, Linux 3", 231.4, 16.7),
    ("ns-3 native, MSS 536", 56.6, 8.3),
    ("ns-3 native, MSS 1448, delack 1", 233.0, 21.5),
    ("NSC, Linux 2.6.26", 246.9, 29.6),
    ("real network, Linux 2.6.32", 331.7, 101.0),
];

/// Mathis and others: MSS/RTT × C/√p, in bit/s. C is 1.22 where every packet is acknowledged.
pub(super) fn mathis(mss: f64, rtt_s: f64, p: f64) -> f64 {
    mss * 8.0 / rtt_s * 1.22 / p.sqrt()
}

/// Padhye and others (PFTK), the short form, in bit/s: with timeouts, one packet an acknowledgement (Linux counts bytes, so that is right),
/// and Linux's retransmission timeout of RTT + 200 ms.
pub(super) fn pftk(mss: f64, rtt_s: f64, p: f64) -> f64 {
    let timeout = (3.0 * (3.0 * p / 8.0).sqrt()).min(1.0) * p * (1.0 + 32.0 * p * p);
    mss * 8.0 / (rtt_s * (2.0 * p / 3.0).sqrt() + (rtt_s + 0.2) * timeout)
}

/// Mean, standard deviation and the half width of the 95 % confidence interval of some values.
pub(super) fn summary(values: &[f64]) -> Option<Summary> {
    // Student's t for 1 to 30 degrees of freedom; above, 1.96 is close.
    const T: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    if values.is_empty() {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() == 1 {
        return Some(Summary {
            mean,
            sd: None,
            ci: None,
        });
    }
    let sd = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt();
    let t = T.get(values.len() - 2).copied().unwrap_or(1.96);
    Some(Summary {
        mean,
        sd: Some(sd),
        ci: Some(t * sd / count.sqrt()),
    })
}

/// Some values in short. One value has no spread.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Summary {
    pub(super) mean: f64,
    pub(super) sd: Option<f64>,
    /// Half the width of the 95 % confidence interval.
    pub(super) ci: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out elsewhere: kbit/s at MSS 1448.
    #[test]
    fn formulae_give_known_values() {
        for (p, rtt, mathis_kbps, pftk_kbps) in [
            (0.05, 0.2, 316.0, 255.0),
            (0.05, 0.206, 306.8, 248.0),
            (0.05, 0.4, 158.0, 134.0),
            (0.01, 0.2, 706.6, 679.0),
        ] {
            let found = [mathis(1448.0, rtt, p), pftk(1448.0, rtt, p)].map(|bps| bps / 1e3);
            assert!((found[0] - mathis_kbps).abs() < 1.0, "{found:?}");
            assert!((found[1] - pftk_kbps).abs() < 1.0, "{found:?}");
        }
    }

    #[test]
    fn a_summary_is_students() {
        let found = summary(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).expect("values");
        assert_eq!(found.mean, 5.0);
        assert!((found.sd.expect("several") - 2.138).abs() < 1e-3);
        assert!((found.ci.expect("several") - 2.365 * 2.138 / 8f64.sqrt()).abs() < 1e-3);
        assert_eq!(summary(&[3.0]).map(|s| (s.mean, s.sd)), Some((3.0, None)));
        assert_eq!(summary(&[]), None);
    }
}
