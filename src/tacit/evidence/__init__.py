"""What can be shown to somebody who does not trust us: certificates, a second accountant, verification, audits.

Nothing here is needed to train or to charge, and nothing here may change what is charged. `second_accountant`,
`signing` and `verify` need neither torch nor the first accountant.
"""
