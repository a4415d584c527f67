//go:build !race

package chaos_test

// sample is how many schedules run where nobody says otherwise.
const sample = 30
