// Package examples holds the example site: the manual of the language by example,
// and the site that the demo converges.
package examples

import "embed"

// Site is the folder site.
//
//go:embed site
var Site embed.FS
