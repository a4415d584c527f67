// Package backup is backups of guests, their Retention, and the jobs that make them.
package backup
