// Package calendar tells when a calendar event of systemd is due next, as the
// schedules of jobs are written.
package calendar
