// Package logins knows who asks: it makes and checks tickets and API tokens.
package logins
