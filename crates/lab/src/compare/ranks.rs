//! Whether pairs lean to one side by more than chance: Wilcoxon's signed ranks.
//!
//! Guarantee: exact for any noise, including ties, if each pair could equally have been measured in
//! the other order: every sign is then as likely as its opposite, and all combinations are counted.
//!
//! Source: Wilcoxon, Individual comparisons by ranking methods, 1945; Pratt, 1959, for ties.

/// Whether the logarithms of ratios lean to one side; by chance in at most this share of cases.
pub(super) fn lean(logs: &[f64], miss: f64) -> bool {
    let mut logs: Vec<f64> = logs.iter().copied().filter(|log| *log != 0.0).collect();
    logs.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    let ranks = doubled_ranks(&logs);
    let total: usize = ranks.iter().sum();
    let up = ranks.iter().zip(&logs).filter(|(_, log)| **log > 0.0).map(|(rank, _)| rank);
    let up: usize = up.sum();
    // The chance of each sum of ranks above zero, rank by rank.
    let mut chances = vec![0.0; total + 1];
    chances[0] = 1.0;
    let mut highest = 0;
    for rank in ranks {
        highest += rank;
        for sum in (0..=highest).rev() {
            let with = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = 0.5 * (chances[sum] + with);
        }
    }
    2.0 * chances[..=up.min(total - up)].iter().sum::<f64>() <= miss
}

/// Twice the rank of each, by size; equal for equal sizes.
fn doubled_ranks(sorted: &[f64]) -> Vec<usize> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for tied in sorted.chunk_by(|one, other| one.abs() == other.abs()) {
        let (first, last) = (ranks.len() + 1, ranks.len() + tied.len());
        ranks.extend(std::iter::repeat_n(first + last, tied.len()));
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_agree_with_published_tables() {
        // For ten pairs, a sum of 8 is the highest with 5 % on both sides (0.0488).
        let with_sum = |negative: &[usize]| -> Vec<f64> {
            (1..=10).map(|n| if negative.contains(&n) { -(n as f64) } else { n as f64 }).collect()
        };
        assert!(lean(&with_sum(&[1, 2, 5]), 0.05));
        assert!(!lean(&with_sum(&[1, 2, 6]), 0.05));
        assert!(lean(&with_sum(&[]), 0.002) && !lean(&with_sum(&[]), 0.0019));
    }

    #[test]
    fn ties_share_their_ranks_and_zeros_have_none() {
        assert_eq!(doubled_ranks(&[1.0, -2.0, 2.0, 3.0]), [2, 5, 5, 8]);
        assert!(!lean(&[0.0; 20], 0.05) && !lean(&[], 0.05));
        assert!(lean(&[0.5; 6], 0.05) && !lean(&[0.5; 5], 0.05));
    }
}
