//! A straight line through points, its uncertainty, and where it reaches a value.
//!
//! ```
//! use picnic_lab::compare::Line;
//! let points = [(1.0, 0.11), (2.0, 0.20), (3.0, 0.29), (4.0, 0.41), (5.0, 0.50)];
//! let line = Line::of(&points).unwrap();
//! let full = line.reaches(1.0).unwrap();
//! assert!(full.low.unwrap() < full.at && full.at < full.high.unwrap());
//! ```
//!
//! Least squares; intervals have 95 % confidence if the points deviate from a line only by chance.
//! A curvature of the points shows in the largest residual, not in the intervals.
//!
//! Source: Fieller, Some problems in interval estimation, 1954; Draper and Smith, Applied
//! Regression Analysis, sections 1.4 and 3.2 (inverse regression).

/// Two-sided 95 % points of Student's distribution, for 1, 2, 3, ... degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// A fitted line with the spread of its points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Change of y per x.
    pub slope: f64,
    /// Half of the slope's 95 % interval.
    pub slope_reach: f64,
    /// The largest distance of a point from the line, in y.
    pub largest_residual: f64,
    /// The share of the variance that it explains; none without variance.
    pub r_squared: Option<f64>,
    /// Number of points.
    count: f64,
    /// Means.
    x: f64,
    y: f64,
    /// Sum of squares of x around its mean.
    spread: f64,
    /// Half of an interval in standard errors, times the standard error of a point; squared.
    reach: f64,
}

/// Where a line reaches a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The estimate.
    pub at: f64,
    /// The lower end; none if unknown.
    pub low: Option<f64>,
    /// The upper end; none if unknown.
    pub high: Option<f64>,
}

impl Line {
    /// The line through points `(x, y)`; none for fewer than three, or if all have the same x.
    pub fn of(points: &[(f64, f64)]) -> Option<Line> {
        let count = points.len() as f64;
        if points.len() < 3 {
            return None;
        }
        let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|&(x, y)| of(x, y)).sum::<f64>();
        let (x, y) = (sum(&|x, _| x) / count, sum(&|_, y| y) / count);
        let spread = sum(&|other, _| (other - x).powi(2));
        if spread <= 0.0 || !y.is_finite() {
            return None;
        }
        let both = sum(&|other_x, other_y| (other_x - x) * (other_y - y));
        let slope = both / spread;
        let spread_y = sum(&|_, other| (other - y).powi(2));
        let residual = |other_x: f64, other_y: f64| other_y - y - slope * (other_x - x);
        let freedom = points.len() - 2;
        let variance = sum(&|x, y| residual(x, y).powi(2)) / freedom as f64;
        let student = STUDENT.get(freedom - 1).copied().unwrap_or(1.96 + 2.5 / freedom as f64);
        let reach = student * student * variance;
        let residuals = points.iter().map(|&(x, y)| residual(x, y).abs());
        Some(Line {
            slope,
            slope_reach: (reach / spread).sqrt(),
            largest_residual: residuals.fold(0.0, f64::max),
            r_squared: (spread_y > 0.0).then(|| both * both / (spread * spread_y)),
            count,
            x,
            y,
            spread,
            reach,
        })
    }

    /// The line's y at this x.
    pub fn at(&self, x: f64) -> f64 {
        self.y + self.slope * (x - self.x)
    }

    /// Where it reaches `y`; none if it is level. The ends are where the interval around the line
    /// reaches it, and are missing if the slope may be zero.
    pub fn reaches(&self, y: f64) -> Option<Crossing> {
        let away = (self.y - y) / self.slope;
        if !away.is_finite() {
            return None;
        }
        let at = self.x - away;
        // (d + b u)² = r (1/n + u²/S), where u is the distance from the mean.
        let (below, square) = (self.y - y, self.slope.powi(2) - self.reach / self.spread);
        if square <= 0.0 {
            return Some(Crossing { at, low: None, high: None });
        }
        let root = (self.reach * (square / self.count + below.powi(2) / self.spread)).sqrt();
        let end = |sign: f64| self.x + (sign * root - below * self.slope) / square;
        let (low, high) = (Some(end(-1.0).min(at)), Some(end(1.0).max(at)));
        Some(Crossing { at, low, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_agree_with_the_definition() {
        // Computed by hand: means 2 and 3, squares around them 2, slope 1.5, residuals 0.5, -1,
        // 0.5.
        let line = Line::of(&[(1.0, 2.0), (2.0, 2.0), (3.0, 5.0)]).unwrap();
        assert_eq!((line.slope, line.at(2.0), line.at(4.0)), (1.5, 3.0, 6.0));
        assert_eq!(line.largest_residual, 1.0);
        // Squares of y around its mean are 6, products 3.
        assert_eq!(line.r_squared, Some(0.75));
        // One degree of freedom: a variance of 1.5, and 12.706 standard errors.
        assert!((line.slope_reach - 12.706 * (1.5_f64 / 2.0).sqrt()).abs() < 1e-9, "{line:?}");
        // A slope this uncertain includes everything.
        assert_eq!(line.reaches(4.5), Some(Crossing { at: 3.0, low: None, high: None }));
    }

    #[test]
    fn anscombes_first_set_has_its_published_line() {
        let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68];
        let line = Line::of(&x.into_iter().zip(y).collect::<Vec<_>>()).unwrap();
        assert!((line.slope - 0.500).abs() < 1e-3 && (line.at(0.0) - 3.0).abs() < 1e-2);
        assert!((line.r_squared.unwrap() - 0.667).abs() < 1e-3);
    }

    #[test]
    fn two_points_or_one_x_give_no_line() {
        assert_eq!(Line::of(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(Line::of(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
        let level = Line::of(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]).unwrap();
        assert_eq!((level.reaches(2.0), level.r_squared), (None, None));
    }

    #[test]
    fn crossings_of_exact_and_noisy_lines() {
        let exact: Vec<_> = (1..6).map(|x| (f64::from(x), 0.1 * f64::from(x))).collect();
        let reached = Line::of(&exact).unwrap().reaches(1.0).unwrap();
        assert!((reached.at - 10.0).abs() < 1e-9);
        assert!((reached.high.unwrap() - reached.low.unwrap()).abs() < 1e-6, "{reached:?}");
        let noisy: Vec<_> = exact.iter().map(|&(x, y)| (x, y + 0.01 * (x % 2.0))).collect();
        let line = Line::of(&noisy).unwrap();
        let (low, high) = (line.reaches(1.0).unwrap().low, line.reaches(1.0).unwrap().high);
        // The ends are where the interval around the line has the value.
        for end in [low.unwrap(), high.unwrap()] {
            let error = line.reach * (1.0 / line.count + (end - line.x).powi(2) / line.spread);
            assert!(((line.at(end) - 1.0).abs() - error.sqrt()).abs() < 1e-9, "{end}");
        }
        assert!(high.unwrap() - low.unwrap() > 0.5, "{low:?} {high:?}");
    }
}
