//! Ent's tests over bytes, their errors in standard deviations, and the balance of queues.

use picnic_hash::{IndirectionTable, randomness};
use picnic_lab::experiment::LabError;
use std::f64::consts::PI;

/// The largest error the paper found.
pub(super) const BOUND: f64 = 0.0129;
/// Entries of the indirection table.
pub(super) const ENTRIES: usize = 128;
/// Errors of a hash, in the order of [`TESTS`].
pub(super) type Errors = [f64; 4];
/// Ent's tests that give an error, and the keys of ours.
pub(super) const TESTS: [(&str, &str); 4] = [
    ("entropy", "entropy_error_fraction"),
    ("mean", "mean_error_fraction"),
    ("pi", "pi_error_fraction"),
    ("serial", "serial_correlation_fraction"),
];

/// Figures, a value for each draw.
#[derive(Default)]
pub(super) struct Draws(pub(super) Vec<(&'static str, Vec<f64>)>);

impl Draws {
    pub(super) fn add(&mut self, key: &'static str, value: f64) {
        match self.0.iter_mut().find(|(own, _)| *own == key) {
            Some((_, values)) => values.push(value),
            None => self.0.push((key, vec![value])),
        }
    }

    pub(super) fn test(&mut self, bytes: &[u8]) {
        let count = bytes.len() as f64;
        let found = randomness(bytes);
        let errors = [
            found.entropy_error_percent() / 100.0,
            found.mean_error_percent() / 100.0,
            found.pi_error_percent() / 100.0,
            found.serial_correlation_error_percent() / 100.0,
        ];
        let deviations = deviations(errors, count);
        // All bytes are equal: the correlation is undefined, and no data is less random.
        let deviations = deviations.map(|z| if z.is_finite() { z.abs() } else { count.sqrt() });
        let largest = errors.iter().copied().filter(|error| error.is_finite()).fold(0.0, f64::max);
        let exceed = found.chi_square_exceed_probability;
        self.add("entropy_error_fraction", errors[0]);
        self.add("mean_error_fraction", errors[1]);
        self.add("pi_error_fraction", errors[2]);
        self.add("serial_correlation_fraction", errors[3]);
        self.add("chi_square_exceed_fraction", exceed);
        self.add("suspect_share", f64::from(u8::from(found.is_suspect())));
        self.add("within_bound_share", f64::from(u8::from(largest <= BOUND)));
        self.add("largest_error_fraction", largest);
        self.add("worst_deviations", deviations.into_iter().fold(0.0, f64::max));
    }

    pub(super) fn spread(
        &mut self,
        hashes: &[u32],
        queues: u16,
        popularity: &str,
    ) -> Result<(), LabError> {
        let table = IndirectionTable::uniform(ENTRIES, queues)
            .map_err(|error| LabError::Failed(error.to_string()))?;
        let mut flows = vec![0.0; usize::from(queues)];
        let mut packets = vec![0.0; usize::from(queues)];
        for (rank, &hash) in hashes.iter().enumerate() {
            let queue = usize::from(table.lookup(hash));
            flows[queue] += 1.0;
            packets[queue] += if popularity == "zipf" { 1.0 / (rank + 1) as f64 } else { 1.0 };
        }
        let busiest = |loads: &[f64]| {
            let mean = loads.iter().sum::<f64>() / loads.len() as f64;
            loads.iter().copied().fold(0.0, f64::max) / mean
        };
        self.add("busiest_by_flows_ratio", busiest(&flows));
        self.add("busiest_by_packets_ratio", busiest(&packets));
        let most = table.counts().into_iter().max().unwrap_or(0) as f64;
        self.add("busiest_by_table_ratio", most * f64::from(queues) / ENTRIES as f64);
        Ok(())
    }
}

/// Errors, as shares, in standard deviations for this number of bytes; negative if the entropy is
/// too good.
pub(super) fn deviations(errors: Errors, count: f64) -> [f64; 4] {
    let share = PI / 4.0;
    [
        // The entropy's deficit is chi-square with 255 degrees of freedom, scaled.
        (errors[0] * 16.0 * 2.0_f64.ln() * count - 255.0) / 510.0_f64.sqrt(),
        errors[1] * 127.5 / ((65_535.0 / 12.0 / count).sqrt()),
        errors[2] * PI / (4.0 * (share * (1.0 - share) / (count / 6.0).floor()).sqrt()),
        errors[3] * count.sqrt(),
    ]
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
