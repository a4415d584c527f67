package doctor

import (
	"context"

	"github.com/homestak/homestak-gitops/engine/model"
)

// ownershipKey checks whether the guests of an owner can be proved to be the site's.
func (s *subject) ownershipKey(owner string) func(context.Context) {
	const name = "ownership key"
	return func(context.Context) {
		secrets := s.site.Secrets
		switch keys := secrets.OwnershipKeys(s.site.Name, owner); {
		case len(keys) > 1:
			s.ok(name, "known, and the one before it: remove auth.%s when all guests have tags by the new one", model.PreviousOwnershipKey)
		case len(keys) == 1:
			s.ok(name, "known")
		case secrets.HasOwnershipKey():
			s.warn(name, "the site has one, and its value is not known here", "without it no tagged guest can be verified, so none is changed",
				"give this machine the secrets that have auth."+model.OwnershipKey+", or the key to decrypt them",
				"or only the key of this host: homestak-gitops token ownership "+owner+", where the key of the site is")
		default:
			s.warn(name, "the site has none", "without it no guest can be verified, so none is removed, replaced or renamed; a user who may edit the description of a guest can still claim it as a declared node",
				secrets.OwnershipKeyAdvice()...)
		}
	}
}
