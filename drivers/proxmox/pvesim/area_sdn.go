package pvesim

import "slices"

// areaSdn is software networks.
func areaSdn() area {
	return area{
		files: slices.Concat(sdnFiles(), fabricFiles()),
		calls: slices.Concat(sdnCalls(), fabricCalls()),
		begin: beginSDN,
	}
}
